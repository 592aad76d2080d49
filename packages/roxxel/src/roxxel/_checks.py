"""Checks of arguments that may come from a config file, so with any type."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any


def check_number(
    name: str,
    value: Any,
    least: float = 0.0,
    most: float = math.inf,
    *,
    is_above: bool = False,
) -> None:
    """Raise TypeError unless a value is a number, ValueError if it is out of bounds.

    With `is_above`, the value must be above `least`.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    is_within = least < number if is_above else least <= number
    if math.isfinite(number) and is_within and number <= most:
        return
    bound = f"above {least:g}" if is_above else f"at least {least:g}"
    upper = f" and at most {most:g}" if math.isfinite(most) else ""
    raise ValueError(f"{name} must be {bound}{upper}, got {value}")
