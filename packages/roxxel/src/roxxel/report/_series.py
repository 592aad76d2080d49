"""Numbers over steps, thinned so that a long run still fits on a page."""

from __future__ import annotations

from dataclasses import dataclass

MOST_POINTS = 800
"""Points of a line: about as many as a picture has columns."""


@dataclass(frozen=True)
class Series:
    """One number over the steps.

    Attributes:
        steps: Never falling.
        values: One for each step; None where it is NaN or infinite.
    """

    steps: list[int]
    values: list[float | None]

    @property
    def last(self) -> float | None:
        """The newest value; None where there is none, or it is not finite."""
        return self.values[-1] if self.values else None

    @property
    def finite(self) -> list[float]:
        """The values that are finite."""
        return [value for value in self.values if value is not None]


def thinned(series: Series, most: int = MOST_POINTS) -> Series:
    """Return a series of at most `most` points, with every extreme in it.

    Neighbours are taken together; of each group its least and its greatest value
    remain, or its first gap. So a spike of one step is still to be seen. First and last
    point remain too.
    """
    count = len(series.steps)
    if count <= most:
        return series
    size = -(-count // (most // 2 - 1))
    kept = {0, count - 1}
    for start in range(0, count, size):
        group = range(start, min(start + size, count))
        gaps = [i for i in group if series.values[i] is None]
        values = [i for i in group if series.values[i] is not None]
        kept.update(gaps[:1])
        if values:
            ordered = sorted(values, key=lambda i: series.values[i] or 0.0)
            kept.update(ordered[:1] if gaps else (ordered[0], ordered[-1]))
    chosen = sorted(kept)
    return Series([series.steps[i] for i in chosen], [series.values[i] for i in chosen])
