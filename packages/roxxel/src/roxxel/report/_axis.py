"""Axes of charts: positions of values, and round numbers to label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG_FROM = 2.5
"""An axis is logarithmic if maximum / minimum of its values exceeds this ratio."""

_LEAST_IN_LOG = 1e-100
"""Values outside 1e-100 to 1e100 get a linear axis: their ratio may overflow."""


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic axis from `low` to `high`; `low < high`."""

    low: float
    high: float
    is_log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value: 0 at `low`, 1 at `high`."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return (math.log(max(value, self.low)) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """Return round numbers on the axis, about `most` of them."""
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
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        steps = (power * factor for factor in (1, 2, 2.5, 5, 10))
        step = next(step for step in steps if step >= least * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def axis_over(
    values: Iterable[float], *, from_zero: bool = False, may_be_log: bool = False
) -> Axis:
    """Return an axis over finite values, with a margin at both ends.

    If `from_zero` and no value is negative, the axis begins at 0.
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
