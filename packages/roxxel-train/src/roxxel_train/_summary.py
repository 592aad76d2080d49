"""The result of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class RunSummary:
    """What one call of `Trainer.run` did.

    Attributes:
        start_step: Updates done before this call.
        step: Updates done now.
        total_steps: Updates in the whole curriculum.
        loss: Loss of the last update; None if this call made no update.
        eval_loss: Mean loss of the last evaluation on held-out data; None without one.
        evaluation: Last result of `eval_fn`; None without one.
        tokens: Tokens delivered by this call.
        seconds: Duration of this call.
        waited_s: Seconds of this call in which the loop waited for data.
        save_path: Folder of the run; None if nothing was written.
    """

    start_step: int
    step: int
    total_steps: int
    loss: float | None
    eval_loss: float | None
    evaluation: Any
    tokens: int
    seconds: float
    waited_s: float
    save_path: Path | None

    @property
    def complete(self) -> bool:
        """Whether the curriculum is done."""
        return self.step == self.total_steps

    def __str__(self) -> str:
        """Return the summary as one line."""
        parts = [f"{self.step} of {self.total_steps} steps"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.eval_loss is not None:
            parts.append(f"held-out loss {self.eval_loss:.4f}")
        if self.tokens:
            share = self.waited_s / self.seconds
            parts.append(f"{self.tokens:,} tokens in {self.seconds:.1f} s")
            parts.append(f"{share:.1%} of it waiting for data")
        if self.save_path is not None:
            parts.append(str(self.save_path))
        return ("done: " if self.complete else "stopped: ") + ", ".join(parts)
