"""Compute which round of a source holds the source's k-th sample.

A source of N tokens is cut into K equal spans of C tokens. A round consists of the next
windows of every span, in an order shuffled by a keyed bijection. The depth is the
number of tokens used in each span. After a change of sequence length, the next round
starts at the same depth. When no further window fits into a span, the next epoch starts
at depth 0 with another key. Windows do not cross spans, so a window is consecutive
tokens, and an epoch reads no token twice if `overlap` is 0.

A packed source consists of bins of `unit` tokens, and its windows are whole bins. It is
read like a source of N / unit tokens, in which each token is a bin: spans, depths,
rounds and keys are the same, and every number of tokens is `unit` times as large.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roxxel_curriculum._order.bijection import make_key, permute

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Spans:
    """How a source is cut into spans; depends on the source's size and `longest`."""

    num_tokens: int  # N
    longest: int  # L
    overlap: int  # tokens that neighbouring windows share, 0 or 1
    num_spans: int  # K
    span_tokens: int  # C; fewer than K bins are outside the spans
    unit: int = 1  # tokens of a bin; 1 if the source is not packed
    # For a proxy: which spans of its source are its own, rising. None for all of them.
    chosen: npt.NDArray[np.int64] | None = field(default=None, compare=False)

    def in_source(self, spans: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers in the source of some of these spans."""
        return spans if self.chosen is None else self.chosen[spans].astype(spans.dtype)

    def numbers(self, first: int, last: int) -> range:
        """Return which of these spans are spans `first` to `last` of the source."""
        if self.chosen is None:
            return range(first, min(last + 1, self.num_spans))
        start, stop = np.searchsorted(self.chosen, [first, last + 1]).tolist()
        return range(start, stop)

    def stride(self, seq_len: int) -> int:
        """Return the distance between the starts of neighbouring windows."""
        return seq_len - self.overlap

    def windows_left(self, seq_len: int, depth: int) -> int:
        """Return the number of unread windows in each span at `depth`."""
        return max(0, self.span_tokens - self.overlap - depth) // self.stride(seq_len)

    def windows_per_round(self, seq_len: int) -> int:
        """Return the number of windows that a whole round reads from each span."""
        return max(1, (self.longest - self.overlap) // self.stride(seq_len))

    def windows_per_epoch(self, seq_len: int) -> int:
        """Return the number of windows in a whole epoch, over all spans."""
        return self.num_spans * self.windows_left(seq_len, 0)


def cut_spans(num_tokens: int, longest: int, overlap: int, unit: int = 1) -> Spans:
    """Cut a source into spans of whole bins of `unit` tokens.

    `rounds` is the number of rounds in an epoch if all windows have the length
    `longest`. With few rounds, an unfinished round or the tail of an epoch wastes more:
    up to `1 / rounds` of the source. With many rounds, fewer windows are shuffled
    together.
    """
    num_bins, most_bins = num_tokens // unit, max(1, longest // unit)
    # ceil(sqrt(N / L) / 2) and ceil(N / (64 L)), exactly, with N and L in bins.
    quarter = -(-num_bins // (4 * most_bins))
    half_root = isqrt(quarter - 1) + 1 if quarter else 0
    rounds = min(100, max(2, half_root, -(-num_bins // (64 * most_bins))))
    num_spans = max(1, num_bins // (most_bins * rounds))
    span_tokens = num_bins // num_spans * unit
    return Spans(num_tokens, longest, overlap, num_spans, span_tokens, unit)


def part_of(spans: Spans, count: int, name: str, seed: int) -> Spans:
    """Return some of a source's spans, as if they were the whole source.

    `name` is the source's name in the order.
    """
    key = make_key("proxy", seed, name)
    chosen = np.sort(permute(np.arange(count), spans.num_spans, key))
    num_tokens = count * spans.span_tokens
    return replace(spans, num_tokens=num_tokens, num_spans=count, chosen=chosen)


class Round(NamedTuple):
    """Consecutive samples within one round of a source."""

    epoch: int
    depth: int  # tokens used in each span before the round
    per_span: int  # windows of each span in the whole round
    first: int  # index of the first sample in the round
    size: int  # number of samples


@dataclass(frozen=True, slots=True)
class SampleStream:
    """Endless samples of one length from a source; starts at `depth` in `epoch`."""

    spans: Spans
    seq_len: int
    epoch: int
    depth: int

    @property
    def first_epoch_samples(self) -> int:
        """Number of samples from the stream's beginning to the end of that epoch."""
        left = self.spans.windows_left(self.seq_len, self.depth)
        return self.spans.num_spans * left

    def samples_until(self, epochs: int) -> int:
        """Return the number of samples before epoch `epochs` starts."""
        if epochs <= self.epoch:
            return 0
        whole = (epochs - self.epoch - 1) * self.spans.windows_per_epoch(self.seq_len)
        return self.first_epoch_samples + whole

    def epochs_started(self, given: int) -> int:
        """Return the number of epochs that have started after `given` samples."""
        return self._epoch_of(given - 1)[0] + 1 if given else self.epoch

    def passes(self, given: int) -> float:
        """Return the number of passes after `given` samples, such as 1.25."""
        spans = self.spans
        stride = spans.stride(self.seq_len)
        first = self.first_epoch_samples
        if given < first or not given:
            used = self.depth * spans.num_spans + given * stride
            return self.epoch + used / spans.num_tokens
        whole, rest = divmod(given - first, spans.windows_per_epoch(self.seq_len))
        return self.epoch + 1 + whole + rest * stride / spans.num_tokens

    def rounds(self, first: int, count: int) -> Iterator[Round]:
        """Yield the rounds that hold the samples `[first, first + count)`, in order."""
        spans = self.spans
        stride = spans.stride(self.seq_len)
        per_round = spans.windows_per_round(self.seq_len)
        sample = first
        while count:  # once for each epoch
            epoch, depth, in_epoch = self._epoch_of(sample)
            windows = spans.windows_left(self.seq_len, depth)  # of each span
            number, in_round = divmod(in_epoch, spans.num_spans * per_round)
            for used in range(number * per_round, windows, per_round):
                per_span = min(per_round, windows - used)  # the last round has fewer
                size = min(count, spans.num_spans * per_span - in_round)
                yield Round(epoch, depth + used * stride, per_span, in_round, size)
                sample += size
                count -= size
                in_round = 0  # only the first round may begin inside
                if not count:
                    return

    def after(self, given: int) -> tuple[int, int]:
        """Return the epoch of sample `given - 1`, and the depth after its round.

        If `given` is 0, these are the epoch and the depth of the stream itself.
        """
        last = next(self.rounds(given - 1, 1))
        stride = self.spans.stride(self.seq_len)
        return last.epoch, last.depth + last.per_span * stride

    def unfinished_tokens(self, given: int) -> int:
        """Return the number of tokens left in the round of sample `given - 1`."""
        last = next(self.rounds(given - 1, 1))
        left = self.spans.num_spans * last.per_span - last.first - 1
        return left * self.spans.stride(self.seq_len)

    def tail_tokens(self, before: int, given: int, *, is_last: bool) -> int:
        """Return the number of unread tokens in epochs that end in `[before, given)`.

        `before` and `given` are sample indices. An epoch ends with the first sample of
        the next epoch: until then, a phase with shorter sequences may still read the
        ends of the spans. If `is_last`, no later phase reads the source, so an epoch
        also ends when no window is left.
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

    def _epoch_of(self, sample: int) -> tuple[int, int, int]:
        """Return the epoch of a sample, the epoch's first depth, and an index.

        The index counts the samples of this epoch, from its first depth.
        """
        first = self.first_epoch_samples
        if sample < first:
            return self.epoch, self.depth, sample
        per_epoch = self.spans.windows_per_epoch(self.seq_len)
        more, in_epoch = divmod(sample - first, per_epoch)
        return self.epoch + 1 + more, 0, in_epoch


class Cursor(NamedTuple):
    """How far the run has read a source: `given` samples of its last stream."""

    stream: SampleStream
    given: int

    def switched_to(self, seq_len: int) -> Cursor:
        """Return the cursor for samples of `seq_len` tokens.

        If the length changes, a new stream starts where the last sample's round ends.
        """
        if self.stream.seq_len == seq_len:
            return self
        epoch, depth = self.stream.after(self.given)
        return Cursor(SampleStream(self.stream.spans, seq_len, epoch, depth), 0)
