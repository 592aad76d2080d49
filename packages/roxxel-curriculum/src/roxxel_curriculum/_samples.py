"""The windows of the rows of consecutive steps: the one structure for samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roxxel_curriculum._order.blend import MAX_DEAL
from roxxel_curriculum._order.window_starts import SampleRange, window_starts

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from roxxel_curriculum._plan.resolved_phase import ResolvedPhase


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """The sources and windows of every row of consecutive training steps.

    The arrays are read-only and of shape `(len(steps), batch_size)`.

    Attributes:
        steps: The training steps.
        seq_len: Tokens of a row.
        source_indices: The sources that give any row, by index.
        source: Index of the source of each row, int64.
        start: First token of each row in its source, int64.
    """

    steps: range
    seq_len: int
    source_indices: tuple[int, ...]
    source: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]

    def rows(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return source and first token of the rows of a step, as views."""
        offset = step - self.steps.start
        return self.source[offset], self.start[offset]


@dataclass(frozen=True, slots=True)
class Windows:
    """The tokens that every row of a step is read from.

    Attributes:
        source: Index into `Sampler.source_names`, int64, shape `(B,)`.
        start: First token in that source, int64, shape `(B,)`.
        stop: One past the last token, int64, shape `(B,)`.
    """

    source: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Location:
    """The tokens and documents that one row of a batch is read from.

    Attributes:
        source: Name of the source; `"self"` is the primary.
        start: First token in the source.
        stop: One past the last token.
        documents: Indices of the documents that have tokens in the row, in order.
    """

    source: str
    start: int
    stop: int
    documents: tuple[int, ...]


def make_block(
    phase: ResolvedPhase, steps: range, source_keys: Mapping[str, int]
) -> SampleBlock:
    """Compute where the rows of some training steps are read.

    Args:
        phase: The phase of the steps.
        steps: Training steps of the run, at least one, without a skip between them.
        source_keys: Keys of all sources by name, in the order of their indices.
    """
    indices = {name: index for index, name in enumerate(source_keys)}
    shape = len(steps), phase.batch_size
    first = phase.data_step(steps.start - phase.start) * phase.batch_size
    stop = first + shape[0] * shape[1]
    ranges: list[SampleRange] = []
    sources: list[int] = []
    offsets: list[npt.NDArray[np.int64]] = []
    sample = first
    while sample < stop:
        leg = phase.leg_of(sample)
        leg_stop = stop if leg.stop is None else min(stop, leg.stop)
        count = min(leg_stop - sample, MAX_DEAL)
        for portion in leg.blend.deal(sample - leg.start, count):
            name = portion.source
            stream, before = phase.cursors[name]
            rank = before + leg.given[name] + portion.given
            size = portion.offsets.size
            ranges.append(SampleRange(stream, source_keys[name], rank, size))
            sources.append(indices[name])
            offsets.append(portion.offsets + (sample - first))
        sample += count
    order = np.concatenate(offsets)
    source = np.empty(stop - first, np.int64)
    source[order] = np.repeat(sources, [part.size for part in offsets])
    start = np.empty(stop - first, np.int64)
    start[order] = window_starts(ranges)
    source.flags.writeable = start.flags.writeable = False
    return SampleBlock(
        steps,
        phase.seq_len,
        tuple(sorted({*sources})),
        source.reshape(shape),
        start.reshape(shape),
    )
