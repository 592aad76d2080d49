"""Computes the source and the window of every row of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roxxel_curriculum._order.bijection import mix_keys, permute_groups
from roxxel_curriculum._order.blend import MAX_DEAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from roxxel_curriculum._order.rounds import SampleStream, Spans
    from roxxel_curriculum._plan.solution import ResolvedPhase


_BLOCK_SAMPLES = 16384
"""Samples in a block. Computing a full block costs 0.1 us a sample, and a block of 64
samples 3 to 5 us a sample (`tests-integration/benchmarks/curriculum_index.py`)."""

_KEPT_BLOCKS = 6
"""Blocks in the cache. Prefetch hints reach 2**15 samples ahead, in up to four blocks.
Two more blocks hold the one being read, and one step read out of order."""


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """The source and the window of every row of consecutive training steps.

    The arrays are read-only and of shape `(len(steps), batch_size)`.
    """

    steps: range
    seq_len: int
    source: npt.NDArray[np.int64]  # index of the source of each row
    start: npt.NDArray[np.int64]  # first token of each row in its source

    def rows(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return source and first token of the rows of a step, as views."""
        offset = step - self.steps.start
        return self.source[offset], self.start[offset]


@dataclass(frozen=True, slots=True)
class Windows:
    """The source and the window of every row of a step.

    Attributes:
        source: Index into `Sampler.source_names`, int64, shape `(B,)`.
        start: Index of the first token in the source, int64, shape `(B,)`.
        stop: One past the last token, int64, shape `(B,)`.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> windows = curriculum.sampler(seed=42).windows(8)
        >>> (windows.stop - windows.start).tolist()
        [129, 129, 129, 129]
    """

    source: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Location:
    """The source, the window and the documents of one row of a batch.

    Attributes:
        source: Name of the source; `"self"` is the primary, unless it has another name.
        start: Index of the first token in the source.
        stop: One past the last token.
        documents: Indices of the documents that have tokens in the row, in order.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> where = curriculum.sampler(seed=42).locate(8, row=0)
        >>> where.source, where.stop - where.start
        ('self', 129)
    """

    source: str
    start: int
    stop: int
    documents: tuple[int, ...]


class _SampleRange(NamedTuple):
    """Consecutive samples of one stream."""

    stream: SampleStream
    key: int  # `make_key(ARITHMETIC_VERSION, seed, order_name)`
    first: int  # index of the first sample in the stream
    size: int  # number of samples


class BlockCache:
    """Caches the windows of the steps read last; results do not depend on it.

    `source_keys` maps the name of each source to its `make_key`, in index order.
    """

    def __init__(self, source_keys: Mapping[str, int]) -> None:
        self._source_keys = source_keys
        # Threads need no lock: `add` replaces this tuple and never modifies it.
        self._blocks: tuple[SampleBlock, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_blocks": ()}

    def at(self, step: int) -> SampleBlock | None:
        """Return the cached block that holds a step; None if there is none."""
        for block in self._blocks:
            if step in block.steps:
                return block
        return None

    def add(self, phase: ResolvedPhase, step: int) -> SampleBlock:
        """Compute and cache a block that holds a step of `phase`.

        If the previous step is cached, the caller probably reads in sequence, so this
        computes a whole block. Other steps are computed alone: their neighbours may
        never be read.
        """
        blocks = self._blocks
        steps = range(step, step + 1)
        if any(step - 1 in block.steps for block in blocks):
            size = max(1, _BLOCK_SAMPLES // phase.batch_size)
            start = phase.start + (step - phase.start) // size * size
            unbroken = phase.unbroken_steps(step)
            steps = range(max(start, unbroken.start), min(start + size, unbroken.stop))
        block = make_block(phase, steps, self._source_keys)
        self._blocks = (block, *blocks[: _KEPT_BLOCKS - 1])
        return block


def make_block(
    phase: ResolvedPhase, steps: range, source_keys: Mapping[str, int]
) -> SampleBlock:
    """Compute the source and the window of every row of some steps of `phase`.

    `steps` counts from the start of the run, is not empty, and no skip interrupts it.
    `source_keys` maps the name of each source to its `make_key`, in index order.
    """
    indices = {name: index for index, name in enumerate(source_keys)}
    shape = len(steps), phase.batch_size
    first = phase.data_step(steps.start - phase.start) * phase.batch_size
    stop = first + shape[0] * shape[1]
    ranges: list[_SampleRange] = []
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
            ranges.append(_SampleRange(stream, source_keys[name], rank, size))
            sources.append(indices[name])
            offsets.append(portion.offsets + (sample - first))
        sample += count
    order = np.concatenate(offsets)
    source = np.empty(stop - first, np.int64)
    source[order] = np.repeat(sources, [part.size for part in offsets])
    start = np.empty(stop - first, np.int64)
    start[order] = _window_starts(ranges)
    source.flags.writeable = start.flags.writeable = False
    return SampleBlock(
        steps,
        phase.seq_len,
        source.reshape(shape),
        start.reshape(shape),
    )


def _window_starts(ranges: Iterable[_SampleRange]) -> npt.NDArray[np.int64]:
    """Return the start of each sample's window; every range must have samples."""
    rows: list[tuple[int, ...]] = []
    keys: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    cuts: list[Spans] = []
    for stream, key, first, count in ranges:
        spans = stream.spans
        stride = spans.stride(stream.seq_len)
        shared = spans.span_tokens, stride, stream.seq_len, spans.unit
        for epoch, depth, per_span, in_round, size in stream.rounds(first, count):
            rows.append((epoch, depth, per_span, in_round, *shared))
            keys.append(key)
            sizes.append(spans.num_spans * per_span)
            counts.append(size)
            cuts.append(spans)
    epoch, depth, per_span, in_round, span_tokens, stride, seq_len, unit = np.array(
        rows, np.uint64
    ).T
    round_keys = mix_keys(
        np.array(keys, np.uint64), epoch, depth // unit, seq_len // unit
    )
    per_round = np.array(counts)
    stops = np.cumsum(per_round)
    # Adding `shift` turns an index over all rounds into an index within its round. A
    # negative shift wraps in uint64, and the sum wraps back.
    shift = in_round - (stops - per_round).astype(np.uint64)
    index = np.arange(stops[-1], dtype=np.uint64) + np.repeat(shift, per_round)
    window = permute_groups(index, per_round, sizes, round_keys)
    span, in_span = np.divmod(window, np.repeat(per_span, per_round))
    for spans, stop, size in zip(cuts, stops, counts, strict=True):
        if spans.chosen is not None:
            span[stop - size : stop] = spans.in_source(span[stop - size : stop])
    starts = span * np.repeat(span_tokens, per_round)
    starts += np.repeat(depth, per_round)
    starts += in_span * np.repeat(stride, per_round)
    return starts.view(np.int64)
