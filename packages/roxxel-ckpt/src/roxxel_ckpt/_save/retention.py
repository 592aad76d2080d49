"""Which finished checkpoints are kept: the newest, the best, and permanent ones.

A rule is the metric and mode that rank checkpoints. Every checkpoint records the rule
of the program that saved it. Without `best_metric`, a program uses the rule that was
recorded last, so all programs agree on the best checkpoint.

Whether a checkpoint is permanent is decided once, when it is committed, and recorded.
Deciding again from all times would delete permanent ones after a clock was wrong.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, Literal

from roxxel_store.arguments import as_integer

from roxxel_ckpt._place.description import BestRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_ckpt._place.description import Description

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class Retention:
    """The retention options of `Checkpointer`."""

    max_to_keep: int | None = 3
    keep_best: int = 1
    keep_every: int | str | None = None
    best_metric: str | None = None
    best_mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        if self.max_to_keep is not None:
            what = "an integer, or None to keep every checkpoint"
            as_integer("max_to_keep", self.max_to_keep, 1, what=what)
        as_integer("keep_best", self.keep_best, 0)
        if isinstance(self.keep_every, str):
            _seconds(self.keep_every)
        elif self.keep_every is not None:
            what = 'a number of steps, or a duration such as "6h"'
            as_integer("keep_every", self.keep_every, 1, what=what)
        if self.best_mode not in {"min", "max", None}:
            raise ValueError(
                f'best_mode must be "min" or "max", got {self.best_mode!r}'
            )

    def best_rule(self, found: Mapping[int, Description]) -> BestRule:
        """Return the rule that ranks the finished steps."""
        recorded = {step: description.best for step, description in found.items()}
        return best_rule(recorded, self.best_metric, self.best_mode)

    def ranked(self, found: Mapping[int, Description]) -> list[int]:
        """Return the steps that have a finite value of the metric, best first."""
        metrics = {step: description.metrics for step, description in found.items()}
        return self.best_rule(found).ranked(metrics)

    def kept(self, found: Mapping[int, Description]) -> set[int]:
        """Return the finished steps to keep, always including the newest."""
        newest_first = sorted(found, reverse=True)
        kept = set(newest_first[: self.max_to_keep])
        best = self.ranked(found)[: self.keep_best]
        return kept | set(best) | {n for n in found if self._is_permanent(found[n])}

    def makes_permanent(
        self, found: Mapping[int, Description], step: int, saved_at: float
    ) -> bool:
        """Return whether a step that is committed now is permanent.

        Args:
            found: The finished steps, which may include an older save of this step.
            step: The step.
            saved_at: The time, in seconds since 1970.
        """
        if step in found and self._is_permanent(found[step]):
            return True
        if not isinstance(self.keep_every, str):
            return self.keep_every is not None and step % self.keep_every == 0
        earlier = [n for n in found if n < step and self._is_permanent(found[n])]
        if not earlier:
            return True
        # The time is negative if a clock was wrong: then keep one checkpoint too many.
        passed_s = saved_at - found[max(earlier)].saved_at
        return not 0 <= passed_s < _seconds(self.keep_every)

    def _is_permanent(self, description: Description) -> bool:
        is_milestone = (
            isinstance(self.keep_every, int) and description.step % self.keep_every == 0
        )
        # A damaged description does not say whether its step is permanent.
        is_damaged = not math.isfinite(description.saved_at)
        return description.is_permanent or is_milestone or is_damaged


def best_rule(
    recorded: Mapping[int, BestRule | None],
    metric: str | None = None,
    mode: Literal["min", "max"] | None = None,
) -> BestRule:
    """Return the rule that ranks the checkpoints of a folder.

    Args:
        recorded: `Description.best` of every checkpoint, by step.
        metric: Replaces the recorded metric.
        mode: Replaces the recorded mode.

    Returns:
        The rule of the newest checkpoint that records one, or `BestRule()` if none
        does. `metric` and `mode` replace its fields. A recorded mode applies only to
        the recorded metric, so a different `metric` without `mode` uses `"min"`.
    """
    rules = {step: rule for step, rule in recorded.items() if rule is not None}
    rule = rules[max(rules)] if rules else BestRule()
    if metric is not None and metric != rule.metric:
        rule = BestRule(metric)
    return rule if mode is None else BestRule(rule.metric, mode)


def _seconds(duration: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd])\s*", duration)
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0
    if seconds <= 0:
        raise ValueError(
            f"keep_every={duration!r} is not a duration; give a number and s, m, h or "
            'd, such as "6h", or an integer for steps'
        )
    return seconds
