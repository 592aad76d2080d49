"""The samples of consecutive steps, worked out in one go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._blend import MAX_DEAL
from roxxel_curriculum._rounds import Draw, window_starts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum._solved import SolvedPhase


@dataclass(frozen=True, slots=True)
class Block:
    """Where every row of some consecutive steps of a phase is read.

    Within a step, rows are grouped by source: group `s` of step `i` of the block is
    `[table[i, s], table[i, s + 1])` of `rows` and `starts`.

    Attributes:
        phase: Index of the phase.
        first: First step, counted in steps' worth of data from the phase's start.
        stop: One past the last.
        batch_size: Rows of a step.
        rows: Row in its step, int64.
        starts: First token in its source, int64.
        table: Where the groups of each step begin, and where the last one ends; int64,
            one more column than there are sources.
        sole: Index of the source of all rows; None where there are several.
    """

    phase: int
    first: int
    stop: int
    batch_size: int
    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    table: npt.NDArray[np.int64]
    sole: int | None

    def bounds(self, data_step: int) -> list[int]:
        """Return where the groups of a step begin, and where the last one ends."""
        bounds: list[int] = self.table[data_step - self.first].tolist()
        return bounds

    def in_row_order(
        self, data_step: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return source index and first token of every row of a step."""
        bounds = self.bounds(data_step)
        rows = self.rows[bounds[0] : bounds[-1]]
        starts = np.empty(rows.size, np.int64)
        starts[rows] = self.starts[bounds[0] : bounds[-1]]
        source = np.empty(rows.size, np.int64)
        source[rows] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return source, starts


def make_block(
    phase: SolvedPhase,
    index: int,
    first: int,
    stop: int,
    sources: Mapping[str, tuple[int, int]],
) -> Block:
    """Work out the steps' worth of data `[first, stop)` of a phase.

    Args:
        phase: The phase.
        index: Its index, kept in the block.
        first: First step's worth of data.
        stop: One past the last.
        sources: Index and key of each source, by name.
    """
    batch_size = phase.piece.batch_size
    base = first * batch_size
    end = stop * batch_size
    dealt: list[tuple[int, npt.NDArray[np.int64], Draw]] = []
    sample = base
    while sample < end:
        leg = phase.legs[phase.leg_of(sample)]
        leg_stop = end if leg.stop is None else min(end, leg.stop)
        count = min(leg_stop - sample, MAX_DEAL)
        for source, at, rank in leg.blend.deal(sample - leg.start, count):
            number, key = sources[source]
            first_rank = phase.bases[source] + leg.given[source] + rank
            draw = Draw(phase.runs[source], key, first_rank, at.size)
            dealt.append((number, at + (sample - base) if sample > base else at, draw))
        sample += count
    dealt.sort(key=itemgetter(0))
    starts = window_starts([draw for _, _, draw in dealt])
    rows, starts, table = _by_step(
        dealt, starts, stop - first, batch_size, len(sources)
    )
    # Parts of these go to readers, and the block is used again.
    rows.flags.writeable = starts.flags.writeable = False
    sole = dealt[0][0] if dealt[0][0] == dealt[-1][0] else None
    return Block(index, first, stop, batch_size, rows, starts, table, sole)


def _by_step(
    dealt: Sequence[tuple[int, npt.NDArray[np.int64], Draw]],
    starts: npt.NDArray[np.int64],
    num_steps: int,
    batch_size: int,
    num_sources: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows, starts and table of a block, of what lies source by source.

    Args:
        dealt: Index of the source, places in the block, and what is drawn for them.
        starts: First token of every place.
        num_steps: Steps of the block.
        batch_size: Rows of a step.
        num_sources: Sources of the run, given here or not.
    """
    places = [at for _, at, _ in dealt]
    if num_steps == 1:
        given = [0] * num_sources
        for number, at, _ in dealt:
            given[number] += at.size
        return (
            np.concatenate(places),
            starts,
            np.array([[0, *accumulate(given)]], np.int64),
        )
    base = (np.arange(num_steps) * batch_size)[:, None]
    table = np.zeros((num_steps, num_sources + 1), np.int64)
    if len(dealt) == 1:  # in order already
        rows = np.empty((num_steps, batch_size), np.int64)
        rows[...] = np.arange(batch_size)
        table[:, dealt[0][0] + 1 :] = batch_size
        table += base
        return rows.ravel(), starts, table
    place = np.concatenate(places)
    step = place // batch_size
    source = np.repeat([number for number, _, _ in dealt], [at.size for at in places])
    group = step * num_sources + source
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group, minlength=num_steps * num_sources)
    np.cumsum(counts.reshape(num_steps, num_sources), axis=1, out=table[:, 1:])
    table += base
    return (place - step * batch_size)[order], starts[order], table
