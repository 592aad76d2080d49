"""Computes the rows that hold a range of a source's tokens: the inverse of `samples`.

The computation has three steps. The range gives the windows of each round. The inverse
bijection gives the positions of these windows in the round. The blend gives the sample
of each position. Nothing is searched, so the cost depends on the number of results, not
on the size of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from roxxel_store.arguments import as_integer

from roxxel_curriculum._order.bijection import Permutation, mix_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from roxxel_curriculum._order.rounds import SampleStream, Spans
    from roxxel_curriculum._plan.solution import ResolvedPhase


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Consecutive tokens of a source in one row of a batch.

    Attributes:
        step: Training step of the batch.
        row: Row of the batch.
        column: Column of the first token.
        start: Index of the first token in the source.
        stop: One past the last token.
        epoch: The pass over the source, counted from 0.

    Example:
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> sampler = curriculum.sampler(seed=42)
        >>> here = sampler.locate(8, row=3)
        >>> found = list(sampler.where(here.source, here.start + 5, here.start + 9))
        >>> [(o.step, o.row, o.column, o.stop - o.start) for o in found]
        [(8, 3, 5, 4)]
    """

    step: int
    row: int
    column: int
    start: int
    stop: int
    epoch: int


class _Sample(NamedTuple):
    rank: int  # index of the sample in its `SampleStream`
    start: int  # first token of the sample's window
    epoch: int


def checked_tokens(source: str, start: int, stop: int, num_tokens: int) -> range:
    """Return the tokens `[start, stop)`; raise IndexError outside the source."""
    start = as_integer("start", start)
    stop = as_integer("stop", stop)
    if not 0 <= start <= stop <= num_tokens:
        raise IndexError(
            f"tokens [{start}, {stop}) are outside source {source!r}, which has "
            f"{num_tokens} tokens; give 0 <= start <= stop <= {num_tokens}"
        )
    return range(start, stop)


def occurrences(
    phase: ResolvedPhase, source: str, key: int, tokens: range, until: int
) -> Iterator[Occurrence]:
    """Yield where a phase reads some tokens before step `until`, in training order.

    `key` is `make_key(ARITHMETIC_VERSION, seed, order_name)` of the source.
    """
    steps = min(phase.stop, until) - phase.start
    if source not in phase.cursors or steps <= 0:
        return
    stream, before = phase.cursors[source]
    given = phase.counts(phase.samples_before(steps))[source]
    for rank, start, epoch in _samples(stream, key, tokens, before, before + given):
        sample = phase.sample_index(source, rank - before)
        data_step, row = divmod(sample, phase.batch_size)
        step = phase.step_of(data_step)
        if step is not None:
            first = max(tokens.start, start)
            stop = min(tokens.stop, start + phase.seq_len)
            yield Occurrence(phase.start + step, row, first - start, first, stop, epoch)


def _samples(
    stream: SampleStream, key: int, tokens: range, first: int, stop: int
) -> Iterator[_Sample]:
    if first >= stop:
        return
    last_epoch = stream.epochs_started(stop) - 1
    for epoch in range(stream.epochs_started(first + 1) - 1, last_epoch + 1):
        is_in_epoch = False
        for sample in _samples_of_epoch(stream, key, tokens, epoch):
            is_in_epoch = True
            if sample.rank >= stop:
                return
            if sample.rank >= first:
                yield sample
        # All epochs of a stream except its first have the same windows. If such an
        # epoch reads none of the tokens, no later epoch does.
        if not is_in_epoch and epoch > stream.epoch:
            return


def _samples_of_epoch(
    stream: SampleStream, key: int, tokens: range, epoch: int
) -> Iterator[_Sample]:
    """Yield the samples of an epoch that read some of the tokens, in order.

    The memory is proportional to the number of such samples in one round.
    """
    spans = stream.spans
    stride = spans.stride(stream.seq_len)
    per_round = spans.windows_per_round(stream.seq_len)
    depth = stream.depth if epoch == stream.epoch else 0
    num_windows = spans.windows_left(stream.seq_len, depth)
    pieces = _pieces(spans, tokens)
    held = [
        (
            piece,
            max(0, (piece.start - depth - stream.seq_len) // stride + 1),
            min(num_windows, (piece.stop - 1 - depth) // stride + 1),
        )
        for piece in pieces
    ]
    held = [(piece, first, stop) for piece, first, stop in held if first < stop]
    if not held:
        return
    rank_of_epoch = stream.samples_until(epoch)
    lowest = min(first for _, first, _ in held) // per_round
    highest = (max(stop for _, _, stop in held) - 1) // per_round
    for number in range(lowest, highest + 1):
        before = number * per_round
        per_span = min(per_round, num_windows - before)
        windows = np.concatenate(
            [
                _windows_in_round(piece, first - before, stop - before, per_span)
                for piece, first, stop in held
            ]
        )
        if not windows.size:
            continue
        round_depth = depth + before * stride
        parts = [
            np.array([part], np.uint64)
            for part in (
                *(key, epoch),
                *(round_depth // spans.unit, stream.seq_len // spans.unit),
            )
        ]
        order = Permutation(spans.num_spans * per_span, int(mix_keys(*parts)[0]))
        ranks = order.inverse(windows)
        span, in_span = np.divmod(windows, per_span)
        starts = spans.in_source(span) * spans.span_tokens + round_depth
        starts += in_span * stride
        rank_of_round = rank_of_epoch + number * spans.num_spans * per_round
        for index in np.argsort(ranks):
            rank = rank_of_round + int(ranks[index])
            yield _Sample(rank, int(starts[index]), epoch)


class _Piece(NamedTuple):
    """The same part of each of some spans.

    The part is the tokens `[start, stop)`, counted from the start of the span.
    """

    numbers: range
    start: int
    stop: int


def _pieces(spans: Spans, tokens: range) -> list[_Piece]:
    """Split a range of tokens into part of a span, whole spans, and part of a span."""
    if not tokens:
        return []
    size = spans.span_tokens
    first, offset = divmod(tokens.start, size)
    last, end = divmod(tokens.stop - 1, size)
    if first == last:
        pieces = [_Piece(spans.numbers(first, first), offset, end + 1)]
    else:
        pieces = [
            _Piece(spans.numbers(first, first), offset, size),
            _Piece(spans.numbers(first + 1, last - 1), 0, size),
            _Piece(spans.numbers(last, last), 0, end + 1),
        ]
    return [piece for piece in pieces if piece.numbers]


def _windows_in_round(
    piece: _Piece, first: int, stop: int, per_span: int
) -> npt.NDArray[np.int64]:
    """Return the indices of windows of a round, counted span by span, unshuffled.

    `piece` selects the spans; `first` and `stop` select the windows in each span.
    """
    in_span = np.arange(max(0, first), max(0, min(stop, per_span)))
    in_spans = np.array(piece.numbers)[:, None] * per_span + in_span
    return in_spans.ravel()
