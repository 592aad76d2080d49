"""The samples of consecutive steps, worked out in one go."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

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
    `[group_bounds[i, s], group_bounds[i, s + 1])` of `rows` and `starts`. None of the
    arrays can be written to.

    Attributes:
        phase: Index of the phase.
        first: First step, counted in steps' worth of data from the phase's start.
        stop: One past the last.
        batch_size: Rows of a step.
        rows: Row in its step, int64.
        starts: First token in its source, int64.
        group_bounds: Where the groups of each step begin, and where the last one ends;
            int64, shape `(stop - first, sources + 1)`.
        sole: Index of the source of all rows; None where there are several.
    """

    phase: int
    first: int
    stop: int
    batch_size: int
    rows: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    group_bounds: npt.NDArray[np.int64]
    sole: int | None

    def bounds(self, data_step: int) -> list[int]:
        """Return where the groups of a step begin, and where the last one ends."""
        bounds: list[int] = self.group_bounds[data_step - self.first].tolist()
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
    rows, starts, group_bounds = _by_step(
        shares, starts, stop - first, batch_size, len(sources)
    )
    # Parts of these go to readers, and the block is used again.
    for array in (rows, starts, group_bounds):
        array.flags.writeable = False
    only = shares[0].source
    sole = only if only == shares[-1].source else None
    return Block(index, first, stop, batch_size, rows, starts, group_bounds, sole)


def _by_step(
    shares: Sequence[_Share],
    starts: npt.NDArray[np.int64],
    num_steps: int,
    batch_size: int,
    num_sources: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return `rows`, `starts` and `group_bounds` of a block.

    Args:
        shares: By source; the places of a lone one may be returned.
        starts: First token of every sample, share after share; may be returned.
        num_steps: Steps of the block.
        batch_size: Rows of a step.
        num_sources: Sources of the run, given here or not.
    """
    places = [share.places for share in shares]
    if num_steps == 1:
        given = [0] * num_sources
        for share in shares:
            given[share.source] += share.places.size
        bounds = np.array([[0, *accumulate(given)]], np.int64)
        rows = places[0] if len(places) == 1 else np.concatenate(places)
        return rows, starts, bounds
    bounds = np.zeros((num_steps, num_sources + 1), np.int64)
    first_row = (np.arange(num_steps) * batch_size)[:, None]
    if len(shares) == 1:  # in order already
        rows = np.empty((num_steps, batch_size), np.int64)
        rows[...] = np.arange(batch_size)
        bounds[:, shares[0].source + 1 :] = batch_size
        bounds += first_row
        return rows.ravel(), starts, bounds
    place = np.concatenate(places)
    step = place // batch_size
    source = np.repeat([share.source for share in shares], [at.size for at in places])
    group = step * num_sources + source
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group, minlength=num_steps * num_sources)
    np.cumsum(counts.reshape(num_steps, num_sources), axis=1, out=bounds[:, 1:])
    bounds += first_row
    return (place - step * batch_size)[order], starts[order], bounds
