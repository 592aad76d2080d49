"""Integers as users give them: Python's and numpy's, but neither True nor 1.0."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(value: Any, message: str) -> int:
    """Return an integer of any type as Python's.

    Raises:
        TypeError: It is no integer, with `message` and the value.
    """
    if isinstance(value, bool):
        raise TypeError(f"{message}, got {value!r}")
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{message}, got {value!r}") from error
