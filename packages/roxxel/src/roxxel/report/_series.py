"""Values over the steps of a run, and its clock, thinned to what a screen shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from roxxel_train.goodput import step_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from roxxel_train.columns import Columns, Table
    from roxxel_train.starts import RunStart

    Floats = npt.NDArray[np.float64]

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
    rows: Columns, starts: Sequence[RunStart], first_step: int, first_tokens: int
) -> Clock:
    """Return the clock of a run, from its rows and its starts.

    All steps of a phase read the same number of tokens, so interpolation is exact
    unless a phase begins between two rows. A thinned clock keeps the rows at both sides
    of the beginning of a phase.
    """
    train = rows.train
    steps = np.append(first_step, train.steps)
    every = -(-len(steps) // MOST_POINTS)
    phases = train.full("phase", -1.0)
    begins = 1 + np.flatnonzero(phases[1:] != phases[:-1])
    ends = [np.arange(0, len(steps), every), [len(steps) - 1]]
    kept = np.unique(np.concatenate([*ends, begins, begins + 1]).astype(np.intp))
    at, counts = train.values("tokens")
    is_counted = counts >= 0
    tokens = np.interp(
        steps[kept],
        np.append(first_step, at[is_counted]),
        np.append(first_tokens, counts[is_counted]),
    )
    passed = np.append(0.0, np.cumsum(step_seconds(rows, starts, first_step)))
    return Clock(
        steps[kept].tolist(),
        [round(x) for x in tokens.tolist()] if is_counted.any() else [],
        [round(x, 3) for x in passed[kept].tolist()] if passed[-1] else [],
    )


def series_of(table: Table) -> dict[str, Series]:
    """Return the values of each field over the steps, thinned to what is drawn."""
    return {name: thinned(*table.values(name)) for name in table.fields()}


def thinned(steps: npt.NDArray[np.int64], values: Floats) -> Series:
    """Return the points of a line for a chart."""
    kept = indices_to_draw(values)
    return Series(
        steps[kept].tolist(),
        [None if math.isnan(x) else x for x in values[kept].tolist()],
    )


def indices_to_draw(values: Floats) -> npt.NDArray[np.intp]:
    """Return the indices of the points to draw of a long line, so the page stays small.

    Both ends stay. Each group of neighbouring points keeps its minimum and its maximum,
    or its minimum and a gap if it has gaps (NaN). A spike of one step stays visible.
    """
    count = len(values)
    if count <= MOST_POINTS:
        return np.arange(count)
    size = -(-count // (MOST_POINTS // 2 - 1))
    whole = count // size * size
    kept = [np.array([0, count - 1])]
    for start, groups in (
        (0, values[:whole].reshape(-1, size)),
        (whole, values[whole:].reshape(1, -1)),
    ):
        if not groups.size:
            continue
        first = start + size * np.arange(len(groups))
        is_gap = np.isnan(groups)
        has_gap, has_value = is_gap.any(axis=1), ~is_gap.all(axis=1)
        lowest = np.where(is_gap, np.inf, groups).argmin(axis=1)
        reverse = np.where(is_gap, -np.inf, groups)[:, ::-1].argmax(axis=1)
        kept += [
            (first + is_gap.argmax(axis=1))[has_gap],
            (first + lowest)[has_value],
            (first + groups.shape[1] - 1 - reverse)[has_value & ~has_gap],
        ]
    return np.unique(np.concatenate(kept))
