"""Whether a trainer's arguments make sense, found out before anything is made."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_curriculum import Sampler


def check_intervals(intervals: Mapping[str, int | None]) -> None:
    """Check that every interval is a number of updates, or None.

    Raises:
        ValueError: One is below 1.
        TypeError: One is no integer.
    """
    for name, value in intervals.items():
        if value is None:
            continue
        try:
            count = operator.index(value)
        except TypeError as error:
            raise TypeError(f"{name} must be an integer, got {value!r}") from error
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")


def check_functions(functions: Mapping[str, Any]) -> None:
    """Check that each can be called, or is None: some are called only after days.

    Raises:
        TypeError: One cannot.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(
                f"{name} is a {type(function).__name__}, which cannot be called; "
                "give a function"
            )


def checked_seconds(hang_after_s: float | None) -> float | None:
    """Return after how many seconds a step hangs; None for never.

    Raises:
        ValueError: It is not above 0.
    """
    if hang_after_s is not None and not hang_after_s > 0:
        raise ValueError(f"hang_after_s must be above 0, got {hang_after_s}")
    return None if hang_after_s == math.inf else hang_after_s


def check_accumulation(sampler: Sampler, grad_accum_steps: int) -> None:
    """Check that every batch can be cut into so many parts.

    Raises:
        ValueError: One cannot.
    """
    for phase in sampler.phases:
        if phase.batch_size % grad_accum_steps:
            raise ValueError(
                f"phase {phase.index} has batch_size={phase.batch_size}, which does "
                f"not divide by grad_accum_steps={grad_accum_steps}; "
                f"use a multiple of {grad_accum_steps}"
            )
