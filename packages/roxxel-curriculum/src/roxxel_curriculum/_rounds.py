"""From a source's k-th sample to the tokens it covers.

A source of N tokens is cut into K equal spans of C tokens, read side by side from the
left. A round is the next windows of every span, shuffled by one keyed bijection. All
that passes from one length of sample to the next is the depth: the tokens used of every
span. When no window fits into what is left of the spans, the next epoch begins at depth
zero with another shuffle. Windows never cross spans, so each is a run of consecutive
tokens and no token comes twice in an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._bijection import mix_keys, permute_groups
from roxxel_curriculum._plain_bijection import mix_plainly, permute_plainly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_FEW = 16
"""So many samples are worked out one by one in less time than by numpy."""


@dataclass(frozen=True, slots=True)
class Spans:
    """How a source is cut: fixed by its size and the run's longest sample.

    Attributes:
        num_tokens: Tokens of the source, N.
        longest: Tokens of the longest sample the run was declared with, L.
        overlap: Tokens that neighbouring windows share, 0 or 1.
        num_spans: Spans, K.
        span_tokens: Tokens of each span, C; fewer than K tokens are left over.
    """

    num_tokens: int
    longest: int
    overlap: int
    num_spans: int
    span_tokens: int

    def stride(self, seq_len: int) -> int:
        """Return the tokens from one window to the next."""
        return seq_len - self.overlap

    def windows_left(self, seq_len: int, depth: int) -> int:
        """Return the windows that each span still holds below `depth`."""
        return max(0, self.span_tokens - self.overlap - depth) // self.stride(seq_len)

    def windows_per_epoch(self, seq_len: int) -> int:
        """Return the windows of a whole epoch, over all spans."""
        return self.num_spans * self.windows_left(seq_len, 0)


def cut_spans(num_tokens: int, longest: int, overlap: int) -> Spans:
    """Cut a source into spans.

    The number of rounds in an epoch of longest samples, m, weighs the two wastes: an
    unfinished round costs 1/m of the source, and so does a tail at most; more rounds
    mean fewer windows shuffled together.
    """
    # ceil(sqrt(N / L) / 2) and ceil(N / (64 L)), exactly.
    quarter = -(-num_tokens // (4 * longest))
    half_root = isqrt(quarter - 1) + 1 if quarter else 0
    rounds = min(100, max(2, half_root, -(-num_tokens // (64 * longest))))
    num_spans = max(1, num_tokens // (longest * rounds))
    return Spans(num_tokens, longest, overlap, num_spans, num_tokens // num_spans)


class Round(NamedTuple):
    """A stretch of samples within one round of a source.

    Attributes:
        epoch: Pass over the source.
        depth: Tokens used of each span before the round.
        per_span: Windows that the round takes from each span.
        first: First sample, counted in the order the round is shuffled into.
        size: Samples of the stretch.
    """

    epoch: int
    depth: int
    per_span: int
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Run:
    """Samples of one length drawn from a source, from an epoch and depth on, endless.

    Attributes:
        spans: How the source is cut.
        seq_len: Tokens of a sample, T.
        epoch: Epoch in which the run begins.
        depth: Tokens used of each span when it begins.
    """

    spans: Spans
    seq_len: int
    epoch: int
    depth: int

    @property
    def first_epoch_samples(self) -> int:
        """Samples left in the epoch in which the run begins."""
        left = self.spans.windows_left(self.seq_len, self.depth)
        return self.spans.num_spans * left

    def samples_until(self, epochs: int) -> int:
        """Return the samples the run gives before epoch `epochs` would begin."""
        if epochs <= self.epoch:
            return 0
        whole = (epochs - self.epoch - 1) * self.spans.windows_per_epoch(self.seq_len)
        return self.first_epoch_samples + whole

    def epochs_begun(self, given: int) -> int:
        """Return the epochs of the source that its first `given` samples touch."""
        return self._epoch_of(given - 1)[0] + 1 if given else self.epoch

    def rounds(self, rank: int, count: int) -> Iterator[Round]:
        """Yield the rounds that hold the samples `[rank, rank + count)`, in order."""
        spans = self.spans
        stride = spans.stride(self.seq_len)
        per_round = max(1, (spans.longest - spans.overlap) // stride)
        while count:
            epoch, depth, inside = self._epoch_of(rank)
            left = spans.windows_left(self.seq_len, depth)
            number, first = divmod(inside, spans.num_spans * per_round)
            for before in range(number * per_round, left, per_round):
                per_span = min(per_round, left - before)
                taken = min(count, spans.num_spans * per_span - first)
                yield Round(epoch, depth + before * stride, per_span, first, taken)
                rank += taken
                count -= taken
                first = 0
                if not count:
                    return

    def after(self, given: int) -> tuple[int, int]:
        """Return epoch and depth where the round of the last given sample ends."""
        if not given:
            return self.epoch, self.depth
        last = next(self.rounds(given - 1, 1))
        stride = self.spans.stride(self.seq_len)
        return last.epoch, last.depth + last.per_span * stride

    def unfinished(self, given: int) -> int:
        """Return the samples left in the round of the last given sample."""
        if not given:
            return 0
        last = next(self.rounds(given - 1, 1))
        return self.spans.num_spans * last.per_span - last.first - 1

    def tail_tokens(self, before: int, given: int, *, is_last: bool) -> int:
        """Return the tokens left out where the epoch ends between two counts.

        An epoch ends where a sample of the next is given: until then another length of
        sample may still take some of what is left of the spans.

        Args:
            before: Samples given earlier; an epoch that they ended is theirs.
            given: Samples given now.
            is_last: Whether nothing more is drawn from the source, so that an epoch
                without a window left has ended too.

        Returns:
            Tokens of the source that no sample of those epochs covers.
        """
        if not given:
            return 0
        spans = self.spans
        stride = spans.stride(self.seq_len)
        room = spans.span_tokens - spans.overlap
        left_over = spans.num_tokens - spans.num_spans * spans.span_tokens
        first = self._epoch_of(before - 1)[0] if before else self.epoch
        last = self._epoch_of(given if is_last else given - 1)[0]
        total = 0
        if first == self.epoch < last:
            total += spans.num_spans * (max(0, room - self.depth) % stride) + left_over
            first += 1
        return total + (last - first) * (spans.num_spans * (room % stride) + left_over)

    def _epoch_of(self, rank: int) -> tuple[int, int, int]:
        """Return epoch, depth at its start in this run, and the sample within it."""
        first = self.first_epoch_samples
        if rank < first:
            return self.epoch, self.depth, rank
        more, inside = divmod(rank - first, self.spans.windows_per_epoch(self.seq_len))
        return self.epoch + 1 + more, 0, inside


class Draw(NamedTuple):
    """Consecutive samples asked of one run.

    Attributes:
        run: The run.
        key: Key of the source, `make_key(arithmetic version, seed, name)`.
        rank: First sample, counted from the start of the run.
        size: Samples.
    """

    run: Run
    key: int
    rank: int
    size: int


def window_starts(draws: Sequence[Draw]) -> npt.NDArray[np.int64]:
    """Return the first token of every sample drawn, draw after draw, int64."""
    if sum(draw.size for draw in draws) <= _FEW:
        return np.array([*_one_by_one(draws)], np.int64)
    return _all_at_once(draws)


def _one_by_one(draws: Iterable[Draw]) -> Iterator[int]:
    """Yield the first token of every sample drawn."""
    for run, source_key, rank, count in draws:
        spans, seq_len = run.spans, run.seq_len
        stride = spans.stride(seq_len)
        for epoch, depth, per_span, first, taken in run.rounds(rank, count):
            key = mix_plainly(source_key, epoch, depth, seq_len)
            indices = range(first, first + taken)
            for place in permute_plainly(indices, spans.num_spans * per_span, key):
                span, inside = divmod(place, per_span)
                yield span * spans.span_tokens + depth + inside * stride


def _all_at_once(draws: Iterable[Draw]) -> npt.NDArray[np.int64]:
    """Return the same as `_one_by_one`, of one draw or more."""
    rows: list[tuple[int, ...]] = []
    keys: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    for run, key, rank, count in draws:
        spans = run.spans
        stride = spans.stride(run.seq_len)
        for epoch, depth, per_span, first, taken in run.rounds(rank, count):
            rows.append(
                (epoch, depth, run.seq_len, first, per_span, spans.span_tokens, stride)
            )
            keys.append(key)
            sizes.append(spans.num_spans * per_span)
            counts.append(taken)
    table = np.array(rows, np.uint64).T
    group_keys = mix_keys(np.array(keys, np.uint64), table[0], table[1], table[2])
    per_group = np.array(counts)
    if len(rows) == 1:  # as of a step alone: nothing to spread
        (total,) = counts
        depth, first, shared = table[1], table[3], table[4:]
    else:
        stops = np.cumsum(per_group)
        total = int(stops[-1])
        table[3] -= (stops - per_group).astype(np.uint64)  # wraps, and back below
        depth, first = np.repeat(table[[1, 3]], per_group, axis=1)
        # Most often all rounds share these, so that one value serves all samples.
        shared = table[4:, :1]
        if (table[4:] != shared).any():
            shared = np.repeat(table[4:], per_group, axis=1)
    per_span, span_tokens, stride = shared
    index = np.arange(total, dtype=np.uint64)
    index += first
    starts = place = permute_groups(index, per_group, sizes, group_keys)
    if per_span.size > 1 or per_span[0] > 1:  # samples shorter than the longest
        starts = place // per_span
        depth = depth + (place - starts * per_span) * stride
    starts *= span_tokens
    starts += depth
    return starts.view(np.int64)
