"""Which finished checkpoints stay: the newest, the best, and permanent ones."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roxxel_ckpt._description import Description

# The mean training loss since the last checkpoint is less noisy than the loss of one
# batch, which checkpoints of version 0.1 and hand-written loops have.
_DEFAULT_METRICS = ("eval_loss", "loss_mean", "loss")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def default_best_metric(metrics: Iterable[Mapping[str, float]]) -> str:
    """Return the metric that judges checkpoints when the user names none.

    Args:
        metrics: The metrics of each checkpoint.

    Returns:
        `"eval_loss"` if any checkpoint has a finite held-out loss; else `"loss_mean"`
        (the mean training loss since the checkpoint before); else `"loss"`.
    """
    present = {
        name
        for of_step in metrics
        for name, value in of_step.items()
        if math.isfinite(value)
    }
    return next((name for name in _DEFAULT_METRICS if name in present), "loss")


@dataclasses.dataclass(frozen=True)
class Retention:
    """What to keep; a checkpoint stays when any of the rules keeps it.

    Attributes:
        max_to_keep: Newest checkpoints to keep, at least 1; None keeps all.
        keep_best: Best checkpoints to keep, 0 or more.
        keep_every: Permanent checkpoints: those at multiples of this number of steps,
            or a text such as `"6h"` for one in each such duration; None for none.
        best_metric: Metric that compares checkpoints; None for `default_best_metric`.
        best_mode: `"min"` when lower is better, `"max"` when higher is.

    Raises:
        ValueError: An attribute is out of its range.
    """

    max_to_keep: int | None = 3
    keep_best: int = 1
    keep_every: int | str | None = None
    best_metric: str | None = None
    best_mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.max_to_keep is not None and self.max_to_keep < 1:
            raise ValueError(
                f"max_to_keep must be at least 1, got {self.max_to_keep}; "
                "use None to keep every checkpoint"
            )
        if self.keep_best < 0:
            raise ValueError(f"keep_best must be 0 or more, got {self.keep_best}")
        if isinstance(self.keep_every, str):
            _seconds(self.keep_every)
        elif self.keep_every is not None and self.keep_every < 1:
            raise ValueError(
                f"keep_every must be at least 1 step, got {self.keep_every}"
            )
        if self.best_mode not in {"min", "max"}:
            raise ValueError(
                f'best_mode must be "min" or "max", got {self.best_mode!r}'
            )

    def ranked(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps that have a finite value of the metric, best first.

        Of equal values the newer step comes first: it has been trained longer.

        Args:
            metrics: The metrics of every finished step.
        """
        name = self.best_metric or default_best_metric(metrics.values())
        sign = 1 if self.best_mode == "min" else -1
        values = {
            step: sign * of_step[name]
            for step, of_step in metrics.items()
            if math.isfinite(of_step.get(name, math.nan))
        }
        return sorted(values, key=lambda step: (values[step], -step))

    def kept(self, found: Mapping[int, Description]) -> set[int]:
        """Return which of the finished steps stay; the newest always stays."""
        newest_first = sorted(found, reverse=True)
        kept = set(newest_first[: self.max_to_keep])
        ranked = self.ranked({step: d.metrics for step, d in found.items()})
        return kept | set(ranked[: self.keep_best]) | self._permanent(found)

    def _permanent(self, found: Mapping[int, Description]) -> set[int]:
        if self.keep_every is None:
            return set()
        if isinstance(self.keep_every, int):
            return {step for step in found if step % self.keep_every == 0}
        permanent: list[int] = []
        for step in sorted(found):
            newest = found[permanent[-1]].saved_at if permanent else -math.inf
            if found[step].saved_at - newest >= _seconds(self.keep_every):
                permanent.append(step)
        return set(permanent)


def _seconds(duration: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", duration)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    if seconds <= 0:
        raise ValueError(
            f"keep_every={duration!r} is not a duration; give a number and s, m, h or "
            'd, such as "6h", or an integer for steps'
        )
    return seconds
