"""Checks of single arguments."""

from __future__ import annotations

import operator
from typing import Any


def check_integers(**numbers: Any) -> None:
    """Raise a TypeError if one of the named numbers is not an integer, or is a bool."""
    for name, number in numbers.items():
        try:
            operator.index(number)
            is_integer = not isinstance(number, bool)
        except TypeError:
            is_integer = False
        if not is_integer:
            raise TypeError(f"{name} is {number!r}; give an integer")


def check_at_least(least: int, **counts: Any) -> None:
    """Raise a ValueError if a count is below `least`, a TypeError if not an integer."""
    check_integers(**counts)
    for name, count in counts.items():
        if count < least:
            raise ValueError(f"{name} is {count}; give {least} or more")


def check_callable(**functions: Any) -> None:
    """Raise a TypeError if one of the named functions cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"{name} is {function!r}, which cannot be called; give a function"
            )
