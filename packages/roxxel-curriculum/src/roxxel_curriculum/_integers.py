"""Integers that users give: Python's and numpy's, but not True and not 1.0."""

from __future__ import annotations

import operator
from typing import Any


def as_integer(value: Any, message: str) -> int:
    """Return an integer of any type as a Python integer.

    Raises:
        TypeError: The value is not an integer; the error holds `message` and the value.
    """
    if isinstance(value, bool):
        raise TypeError(f"{message}, got {value!r}")
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{message}, got {value!r}") from error
