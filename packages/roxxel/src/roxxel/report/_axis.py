"""Axes: from numbers to places in a picture, and the numbers that stand beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG_FROM = 2.5
"""Ratio of the greatest to the least value from which on an axis is logarithmic."""

_LEAST_IN_LOG = 1e-100
"""Values below it, or above its inverse, have ratios that a float cannot hold."""


@dataclass(frozen=True)
class Axis:
    """A line of numbers.

    Attributes:
        low: Number at the beginning.
        high: Number at the end, above `low`.
        is_log: Whether equal ratios are equally long, not equal differences.
    """

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies: 0 at the beginning, 1 at the end."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Return round numbers on the axis, about `most` of them at most."""
        if self.is_log:
            decades = range(
                math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1
            )
            for digits in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 3), (1,)):
                found = [d * 10.0**e for e in decades for d in digits]
                inside = [tick for tick in found if self.low <= tick <= self.high]
                if 2 <= len(inside) <= most + 2:
                    return inside
            if len(decades) > most:
                every = -(-len(decades) // most)
                powers = [10.0**exponent for exponent in decades[::every]]
                return [tick for tick in powers if self.low <= tick <= self.high]
        step = _round_step((self.high - self.low) / most)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def axis_over(
    values: Iterable[float], *, from_zero: bool = False, may_be_log: bool = False
) -> Axis:
    """Return an axis that holds all values, with a little room.

    Args:
        values: Finite numbers.
        from_zero: Whether it begins at 0.
        may_be_log: Whether it may be logarithmic where that shows more.
    """
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    in_reach = low > _LEAST_IN_LOG and high < 1 / _LEAST_IN_LOG
    if may_be_log and in_reach and high / low > _LOG_FROM:
        room = (high / low) ** 0.04
        return Axis(low / room, high * room, is_log=True)
    if from_zero and low >= 0:
        return Axis(0.0, high * 1.06 or 1.0)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Axis(low - room, high + room)


def short(value: float) -> str:
    """Return a number in few letters: 1.5 k, 20 M, 0.003."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.4g} {unit}"
    return f"{value:.4g}"


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= least * 0.999)
