"""Values over the steps of a run or over its tokens, thinned for drawing."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_POINTS = 800
"""Maximum number of points in a line, about one per pixel column of a chart."""


@dataclass(frozen=True)
class Series:
    """Values of one quantity; None stands for NaN and infinities."""

    x: list[int]  # steps, or tokens read; ascending
    values: list[float | None]

    @property
    def last(self) -> float | None:
        """The newest value; None if the series is empty or the value is not finite."""
        return self.values[-1] if self.values else None

    @property
    def finite(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def is_constant(self) -> bool:
        """Whether all values are finite and equal, or there is no value."""
        return None not in self.values and len(set(self.values)) <= 1


def thinned(series: Series) -> Series:
    """Drop points of a long series, so that the page stays small.

    The result keeps both ends. From each group of neighbouring points, it keeps the
    minimum and the maximum, or the minimum and a gap if the group has gaps. A spike of
    one step stays visible.
    """
    return at(series, points_to_draw(series))


def at(series: Series, indices: list[int]) -> Series:
    """Return the points of a series with these indices."""
    return Series([series.x[i] for i in indices], [series.values[i] for i in indices])


def points_to_draw(series: Series) -> list[int]:
    """Return the indices of the points that `thinned` keeps."""
    count = len(series.x)
    if count <= _MOST_POINTS:
        return list(range(count))
    size = -(-count // (_MOST_POINTS // 2 - 1))
    kept = {0, count - 1}
    for start in range(0, count, size):
        group = range(start, min(start + size, count))
        gaps = [i for i in group if series.values[i] is None]
        values = [i for i in group if series.values[i] is not None]
        kept.update(gaps[:1])
        if values:
            ordered = sorted(values, key=lambda i: series.values[i] or 0.0)
            kept.update(ordered[:1] if gaps else (ordered[0], ordered[-1]))
    return sorted(kept)
