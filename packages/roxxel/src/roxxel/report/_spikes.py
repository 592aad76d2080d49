"""Find spikes of the loss: rows whose loss is far above the loss of earlier rows.

The rule uses medians, so neither earlier spikes nor the fall of the loss at the start
of a run change what counts as usual. It compares rows of one phase only, because
another blend or length changes the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from roxxel_train.config import SpikeRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from roxxel_train.columns import Table

_RULE = SpikeRule()
"""The numbers by which `skip_spikes` leaves updates out, but for the first rows."""

LEAST_BEFORE = 16
"""A row with fewer earlier rows in its phase is not compared."""

RULE = (
    "A row of the log is marked if its loss exceeds the median of the "
    f"{_RULE.window} rows before by more than {_RULE.deviations:g} times their median "
    "absolute deviation, and by more than "
    f"{100 * _RULE.deviations * _RULE.least_deviation:.2g} % of the median. Only rows "
    f"of the same phase are compared, and the first {LEAST_BEFORE} rows of a phase are "
    "never marked."
)
"""The rule in words, for the page."""

_ROWS_AT_A_TIME = 2**14  # 8 MiB of windows


@dataclass(frozen=True)
class Spike:
    """Consecutive rows with a high loss; the attributes describe the highest loss.

    Attributes:
        row: Step of the row with the highest loss, in updates done, as in the log.
        steps: Steps of the batches that had this loss, counted from 0.
        loss: The highest loss.
        usual: Median of the losses before.
        num_rows: Number of rows in the spike.
        is_mean: Whether the loss is a mean over several steps.
    """

    row: int
    steps: range
    loss: float
    usual: float
    num_rows: int
    is_mean: bool = False


def find_spikes(train: Table) -> list[Spike]:
    """Return the spikes of a run's training rows, in order of steps.

    Spikes are found in the loss of single steps, and in the mean loss since the
    previous row, which includes steps that have no row. If a row is a spike in both
    losses, the result has only the single step's spike.
    """
    found = list(_spikes(train, "loss"))
    rows_found = {spike.row for spike in found}
    losses, means = (train.full(name, math.nan) for name in ("loss", "loss_mean"))
    if not np.array_equal(losses, means, equal_nan=True):  # as if every step has a row
        also = _spikes(train, "loss_mean")
        found += [spike for spike in also if spike.row not in rows_found]
    return sorted(found, key=lambda spike: spike.row)


def _spikes(train: Table, field: str) -> Iterator[Spike]:
    is_mean = field == "loss_mean"
    steps, values = train.steps, train.full(field, math.nan)
    phases = train.full("phase", -1.0)
    edges = [0, *(1 + np.flatnonzero(phases[1:] != phases[:-1])).tolist(), len(train)]
    for first, stop in pairwise(edges):
        indices = first + np.flatnonzero(~np.isnan(values[first:stop]))
        losses = values[indices]
        usual, is_high = _compared(losses)
        for start, end in _stretches(is_high):
            at = start + int(losses[start:end].argmax())
            index = int(indices[at])
            row = int(steps[index])
            before = int(steps[index - 1]) if is_mean and index else 0
            of = range(before if is_mean else max(row - 1, 0), row)
            loss, median = float(losses[at]), float(usual[at])
            yield Spike(row, of, loss, median, end - start, is_mean)


def _compared(
    losses: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the usual loss at each row, and whether the loss of the row is a spike."""
    usual, bound = np.full((2, len(losses)), np.inf)
    most = _RULE.window
    for at in range(LEAST_BEFORE, min(most, len(losses))):
        usual[at : at + 1], bound[at : at + 1] = _bounds(losses[None, :at])
    if len(losses) > most:
        windows = np.lib.stride_tricks.sliding_window_view(losses[:-1], most)
        for start in range(0, len(windows), _ROWS_AT_A_TIME):
            some = windows[start : start + _ROWS_AT_A_TIME]
            at = slice(most + start, most + start + len(some))
            usual[at], bound[at] = _bounds(some)
    return usual, losses > bound


def _bounds(
    windows: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the median of each window, and the limit above which a loss is a spike."""
    medians = np.median(windows, axis=1)
    deviations = np.median(np.abs(windows - medians[:, None]), axis=1)
    least = _RULE.least_deviation * np.abs(medians)
    return medians, medians + _RULE.deviations * np.maximum(deviations, least)


def _stretches(is_high: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each group of consecutive high rows."""
    padded = np.concatenate([[0], is_high.astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(padded))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
