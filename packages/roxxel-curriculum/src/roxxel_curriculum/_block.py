"""The samples of consecutive steps, worked out in one go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._blend import MAX_DEAL
from roxxel_curriculum._rounds import Draw, window_starts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum._solved import SolvedPhase


_ALL_ROWS = slice(None)


class Group(NamedTuple):
    """Rows of a step that one source gives; the arrays may be read-only.

    Attributes:
        source: Its index.
        rows: Which rows, ascending, int64, shape `(n,)`; or `slice(None)`, for all.
        starts: First token of each in the source, int64, shape `(n,)`.
    """

    source: int
    rows: npt.NDArray[np.int64] | slice
    starts: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SoleBlock:
    """Where every row of some consecutive steps of a phase is read, in one source.

    Attributes:
        phase: Index of the phase.
        first: First step, counted in steps' worth of data from the phase's start.
        stop: One past the last.
        batch_size: Rows of a step.
        source: Index of the source.
        starts: First token of each row, step after step; int64, read-only, shape
            `((stop - first) * batch_size,)`.
    """

    phase: int
    first: int
    stop: int
    batch_size: int
    source: int
    starts: npt.NDArray[np.int64]

    def groups(self, data_step: int) -> list[Group]:
        """Return the rows of a step by source, the one there is."""
        low = (data_step - self.first) * self.batch_size
        starts = self.starts[low : low + self.batch_size]
        return [Group(self.source, _ALL_ROWS, starts)]


@dataclass(frozen=True, slots=True)
class BlendBlock:
    """Where every row of some consecutive steps of a phase is read, in many sources.

    Within a step, rows are grouped by source: group `s` of step `i` of the block is
    `[bounds[i, s], bounds[i, s + 1])` of `rows` and `starts`. The arrays are int64 and
    read-only; `rows` and `starts` of shape `((stop - first) * batch_size,)`.

    Attributes:
        phase: Index of the phase.
        first: First step, counted in steps' worth of data from the phase's start.
        stop: One past the last.
        batch_size: Rows of a step.
        rows: Row in its step.
        starts: First token in its source.
        bounds: Where the groups of each step begin, and where the last one ends; shape
            `(stop - first, sources + 1)`.
    """

    phase: int
    first: int
    stop: int
    batch_size: int
    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]

    def groups(self, data_step: int) -> list[Group]:
        """Return the rows of a step by source, of those that give any."""
        bounds: list[int] = self.bounds[data_step - self.first].tolist()
        return [
            Group(source, self.rows[low:high], self.starts[low:high])
            for source, (low, high) in enumerate(pairwise(bounds))
            if low < high
        ]


Block: TypeAlias = SoleBlock | BlendBlock
"""The samples of consecutive steps."""


def in_row_order(
    block: Block, data_step: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return source index and first token of every row of a step.

    Returns:
        New int64 arrays of shape `(batch_size,)`.
    """
    source = np.empty(block.batch_size, np.int64)
    starts = np.empty(block.batch_size, np.int64)
    for group in block.groups(data_step):
        source[group.rows] = group.source
        starts[group.rows] = group.starts
    return source, starts


def grouped(
    source: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> list[Group]:
    """Return rows by source, of those that give any.

    Args:
        source: Index of the source of each row, shape `(n,)`.
        starts: First token of each, shape `(n,)`.
    """
    of_source = ((i, np.flatnonzero(source == i)) for i in np.unique(source).tolist())
    return [Group(i, rows, starts[rows]) for i, rows in of_source]


class _Share(NamedTuple):
    """What one source gives of a block.

    Attributes:
        source: Its index.
        places: Which samples of the block, ascending, int64.
        draw: Which of its own.
    """

    source: int
    places: npt.NDArray[np.int64]
    draw: Draw


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
        stop: One past the last, above `first`.
        sources: Index and key of each source, by name.

    Returns:
        A `SoleBlock` where one source gives every row, even if others could.
    """
    batch_size = phase.piece.batch_size
    base = first * batch_size
    end = stop * batch_size
    shares: list[_Share] = []
    sample = base
    while sample < end:
        leg = phase.legs[phase.leg_of(sample)]
        leg_stop = end if leg.stop is None else min(end, leg.stop)
        count = min(leg_stop - sample, MAX_DEAL)
        for name, places, rank in leg.blend.deal(sample - leg.start, count):
            source, key = sources[name]
            first_rank = phase.bases[name] + leg.given[name] + rank
            draw = Draw(phase.runs[name], key, first_rank, places.size)
            # Most often all samples are dealt at once, and lie where they are dealt.
            moved = places + (sample - base) if sample > base else places
            shares.append(_Share(source, moved, draw))
        sample += count
    shares.sort(key=attrgetter("source"))
    starts = window_starts([share.draw for share in shares])
    source = shares[0].source
    # Parts of the arrays go to readers, and the block is used again: none may write.
    if source == shares[-1].source:  # its shares are in the order of the samples
        starts.flags.writeable = False
        return SoleBlock(index, first, stop, batch_size, source, starts)
    arrays = _by_step(shares, starts, stop - first, batch_size, len(sources))
    for array in arrays:
        array.flags.writeable = False
    return BlendBlock(index, first, stop, batch_size, *arrays)


def _by_step(
    shares: Sequence[_Share],
    starts: npt.NDArray[np.int64],
    num_steps: int,
    batch_size: int,
    num_sources: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return `rows`, `starts` and `bounds` of a block.

    Args:
        shares: By source.
        starts: First token of every sample, share after share; may be returned.
        num_steps: Steps of the block.
        batch_size: Rows of a step.
        num_sources: Sources of the run, given here or not.
    """
    places = [share.places for share in shares]
    place = np.concatenate(places)
    if num_steps == 1:
        given = [0] * num_sources
        for share in shares:
            given[share.source] += share.places.size
        return place, starts, np.array([[0, *accumulate(given)]], np.int64)
    step = place // batch_size
    source = np.repeat([share.source for share in shares], [at.size for at in places])
    group = step * num_sources + source
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group, minlength=num_steps * num_sources)
    bounds = np.zeros((num_steps, num_sources + 1), np.int64)
    np.cumsum(counts.reshape(num_steps, num_sources), axis=1, out=bounds[:, 1:])
    bounds += (np.arange(num_steps) * batch_size)[:, None]
    return (place - step * batch_size)[order], starts[order], bounds
