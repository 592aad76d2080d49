"""Which finished checkpoints stay: the newest, the best, and milestones."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Retention:
    """What to keep; a checkpoint stays when any of the rules wants it.

    Attributes:
        max_to_keep: Newest checkpoints to keep, at least 1; None keeps all.
        keep_best: Best checkpoints to keep, 0 or more.
        keep_every: Every checkpoint whose step is a multiple of this stays for
            ever; None for no such rule.
        best_metric: Name of the metric by which checkpoints are compared.
        best_mode: `"min"` when lower is better, `"max"` when higher is.
    """

    max_to_keep: int | None = 3
    keep_best: int = 1
    keep_every: int | None = None
    best_metric: str = "loss"
    best_mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        """Refuse numbers that would keep nothing or mean nothing."""
        if self.max_to_keep is not None and self.max_to_keep < 1:
            raise ValueError(
                f"max_to_keep must be at least 1, got {self.max_to_keep}; "
                "use None to keep every checkpoint"
            )
        if self.keep_best < 0:
            raise ValueError(f"keep_best must be 0 or more, got {self.keep_best}")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(
                f"keep_every must be a step count of at least 1, got {self.keep_every}"
            )
        if self.best_mode not in {"min", "max"}:
            raise ValueError(
                f'best_mode must be "min" or "max", got {self.best_mode!r}'
            )

    def ranked(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        """Return the steps that have a finite value of the metric, best first.

        Args:
            metrics: Metrics of every finished step.

        Of equal values the newer step comes first: it has been trained longer.
        """
        sign = 1 if self.best_mode == "min" else -1
        values = {
            step: sign * of_step[self.best_metric]
            for step, of_step in metrics.items()
            if math.isfinite(of_step.get(self.best_metric, math.nan))
        }
        return sorted(values, key=lambda step: (values[step], -step))

    def kept(self, metrics: Mapping[int, Mapping[str, float]]) -> set[int]:
        """Return which of the finished steps stay; the newest one always does."""
        newest_first = sorted(metrics, reverse=True)
        kept: set[int] = set(newest_first[: self.max_to_keep])
        kept.update(self.ranked(metrics)[: self.keep_best])
        kept.update(self._milestones(metrics))
        return kept

    def _milestones(self, steps: Iterable[int]) -> Iterable[int]:
        every = self.keep_every
        return [] if every is None else [step for step in steps if step % every == 0]
