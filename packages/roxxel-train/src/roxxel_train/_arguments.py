"""Whether a trainer's arguments make sense, found out before anything is made."""

from __future__ import annotations

import math
import operator
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_curriculum import Curriculum

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


@dataclass(frozen=True)
class Intervals:
    """After how many updates something is done again.

    Attributes:
        eval_every: An evaluation; None for the last update only.
        checkpoint_every: A checkpoint.
        log_every: A row of metrics.

    Raises:
        ValueError: One is below 1.
        TypeError: One is no integer.
    """

    eval_every: int | None
    checkpoint_every: int
    log_every: int

    def __post_init__(self) -> None:
        check_counts(vars(self), optional=["eval_every"])
        for name, value in vars(self).items():
            # Of numpy's integers some could not count the steps of a run.
            number = None if value is None else operator.index(value)
            object.__setattr__(self, name, number)


def check_counts(counts: Mapping[str, Any], optional: Collection[str]) -> None:
    """Check that each is a number of things; the optional ones may be None.

    Raises:
        ValueError: One is below 1.
        TypeError: One is no integer.
    """
    for name, value in counts.items():
        if value is None and name in optional:
            continue
        number: Any = value
        try:
            count = operator.index(number)
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


def checked_curriculum(curriculum: Curriculum | None) -> Curriculum:
    """Return the curriculum, which must be one.

    Raises:
        TypeError: It is none.
    """
    if curriculum is None:
        raise TypeError("give curriculum: it says what every step reads")
    check_types({"curriculum": (curriculum, Curriculum)})
    return curriculum


def check_types(objects: Mapping[str, tuple[Any, type]]) -> None:
    """Check that each object is of the type it must be of, or None.

    Raises:
        TypeError: One is not.
    """
    for name, (value, expected) in objects.items():
        if value is not None and not isinstance(value, expected):
            raise TypeError(
                f"{name} is a {type(value).__name__}; give a {expected.__name__}"
            )


def check_amounts(amounts: Mapping[str, Any], optional: Collection[str]) -> None:
    """Check that each is a number above 0; the optional ones may be None.

    Raises:
        ValueError: One is not above 0.
        TypeError: One is no number.
    """
    for name, value in amounts.items():
        if value is None and name in optional:
            continue
        if not isinstance(value, int | float | np.integer | np.floating):
            raise TypeError(f"{name} must be a number, got {value!r}")
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
        if sys.float_info.max < value < math.inf:
            raise ValueError(f"{name} is beyond the floats; give a smaller one")


def awaited_metric(name: str, measured: Iterable[str], *, eval_fn: Any) -> str | None:
    """Return the name if a run has a value by it only when `eval_fn` returns one.

    Args:
        name: Of the value by which the best checkpoint is chosen.
        measured: Names of what every update and the held-out data give.
        eval_fn: The user's function, or None.

    Raises:
        ValueError: Nothing gives such a value.
    """
    known = sorted(measured)
    if name in known:
        return None
    if eval_fn is None:
        raise ValueError(
            f"best_metric={name!r} is nothing that this run measures; "
            f"name one of {', '.join(known)}"
        )
    return name
