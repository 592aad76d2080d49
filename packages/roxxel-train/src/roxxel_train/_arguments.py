"""Checks of a trainer's arguments, before anything is created."""

from __future__ import annotations

import math
import operator
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Intervals:
    """Numbers of updates after which something is repeated.

    Attributes:
        eval_every: An evaluation; None evaluates after the last update only.
        checkpoint_every: A checkpoint.
        log_every: A row of metrics.

    Raises:
        ValueError: A number is below 1.
        TypeError: A number is not an integer.
    """

    eval_every: int | None
    checkpoint_every: int
    log_every: int

    def __post_init__(self) -> None:
        check_counts(checkpoint_every=self.checkpoint_every, log_every=self.log_every)
        check_counts(**given(eval_every=self.eval_every))
        for name, value in vars(self).items():
            # NumPy integers may be too small to count steps.
            number = None if value is None else operator.index(value)
            object.__setattr__(self, name, number)


def given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_counts(**counts: Any) -> None:
    """Check that each value is an integer of 1 or more.

    Raises:
        ValueError: A value is below 1.
        TypeError: A value is not an integer.
    """
    for name, value in counts.items():
        try:
            count = operator.index(value)
        except TypeError as error:
            raise TypeError(f"{name} must be an integer, got {value!r}") from error
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, got {value}")


def check_amounts(**amounts: Any) -> None:
    """Check that each value is a number above 0.

    Raises:
        ValueError: A value is not above 0, or not a finite float's size.
        TypeError: A value is not a number.
    """
    for name, value in amounts.items():
        if not isinstance(value, int | float | np.integer | np.floating):
            raise TypeError(f"{name} must be a number, got {value!r}")
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
        if sys.float_info.max < value < math.inf:
            raise ValueError(f"{name} is larger than any float; give a smaller number")


def check_functions(**functions: Any) -> None:
    """Check that each value is callable or None.

    Raises:
        TypeError: A value is neither.
    """
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise TypeError(
                f"{name} is a {type(function).__name__}, which cannot be called; "
                "give a function"
            )


def check_types(expected: type, **objects: Any) -> None:
    """Check that each value has a type, or is None.

    Raises:
        TypeError: A value has another type.
    """
    for name, value in objects.items():
        if value is not None and not isinstance(value, expected):
            raise TypeError(
                f"{name} is a {type(value).__name__}; give a {expected.__name__}"
            )


def check_best_metric(
    name: str | None, measured: Iterable[str], *, has_eval_fn: bool
) -> str | None:
    """Check that a run measures `best_metric`.

    Args:
        name: The metric; None for the default.
        measured: Names of the values of updates and of the held-out data.
        has_eval_fn: Whether an `eval_fn` may return further values.

    Returns:
        The name if only `eval_fn` can return it, otherwise None.

    Raises:
        ValueError: Nothing measures it.
    """
    known = sorted(measured)
    if name is None or name in known:
        return None
    if not has_eval_fn:
        raise ValueError(
            f"best_metric={name!r} is nothing that this run measures; "
            f"name one of {', '.join(known)}"
        )
    return name
