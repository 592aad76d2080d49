"""Values over the steps of a run, thinned to what a screen shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_train.run_folder import is_count, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_POINTS = 2000
"""Maximum number of points in a line: about one per pixel column of a wide screen.

Of a run of 100 000 rows and 15 charts, the page then holds 1.0 MB of numbers, and a
browser needs no more time to open it than a page of 20 rows."""


@dataclass(frozen=True)
class Series:
    """Values of one quantity; None stands for NaN and infinities."""

    steps: list[int]  # ascending
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


@dataclass(frozen=True)
class Clock:
    """Tokens and training time at steps of a run; the page interpolates between them.

    Every chart is drawn over steps, tokens or time, so the page holds each once.

    Attributes:
        steps: The first step of the run, then steps of its rows; ascending.
        tokens: Tokens read at each step; empty if the rows do not count them.
        seconds: Training time at each step, without evaluations, compilations and
            saves; empty if the rows do not measure the time.
    """

    steps: list[int]
    tokens: list[int]
    seconds: list[float]


def clock_of(
    train: Sequence[Mapping[str, Any]], first_step: int, first_tokens: int
) -> Clock:
    """Return the clock of a run, from its training rows.

    All steps of a phase read the same number of tokens, so interpolation is exact
    unless a phase begins between two rows. A thinned clock keeps the rows at both sides
    of the beginning of a phase.
    """
    counted = [row for row in train if is_count(row.get("tokens"))]
    steps = [first_step, *(row["step"] for row in train)]
    tokens = np.interp(
        steps,
        [first_step, *(row["step"] for row in counted)],
        [first_tokens, *(row["tokens"] for row in counted)],
    )
    passed = [0.0]
    for row, before in zip(train, steps, strict=False):
        spent = max(row["step"] - before, 1) * (number(row.get("step_s")) or 0.0)
        passed.append(passed[-1] + spent)
    every = -(-len(steps) // MOST_POINTS)
    kept = {*range(0, len(steps), every), len(steps) - 1}
    for index in range(1, len(train)):
        if train[index].get("phase") != train[index - 1].get("phase"):
            kept.update((index, index + 1))
    chosen = sorted(kept)
    return Clock(
        [steps[i] for i in chosen],
        [round(tokens[i]) for i in chosen] if counted else [],
        [round(passed[i], 3) for i in chosen] if passed[-1] else [],
    )


def thinned(series: Series) -> Series:
    """Drop points of a long series, so that the page stays small.

    The result keeps both ends. From each group of neighbouring points, it keeps the
    minimum and the maximum, or the minimum and a gap if the group has gaps. A spike of
    one step stays visible.
    """
    return at(series, points_to_draw(series))


def at(series: Series, indices: list[int]) -> Series:
    """Return the points of a series with these indices."""
    return Series(
        [series.steps[i] for i in indices], [series.values[i] for i in indices]
    )


def points_to_draw(series: Series) -> list[int]:
    """Return the indices of the points that `thinned` keeps."""
    count = len(series.steps)
    if count <= MOST_POINTS:
        return list(range(count))
    size = -(-count // (MOST_POINTS // 2 - 1))
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
