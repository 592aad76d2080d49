"""From the k-th sample of a source to the round that holds it.

A source of N tokens is cut into K equal spans of C tokens, which are read side by side
from the left. A round is the next windows of every span, shuffled by one keyed
bijection. Only the depth, the number of tokens used of every span, passes from one
sequence length to the next. When no window fits into the rest of the spans, the next
epoch starts at depth zero with another key. Windows never cross spans, so each window
is a run of consecutive tokens, and no epoch reads a token twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Spans:
    """How a source is cut: fixed by its size and by the run's longest sequence.

    Attributes:
        num_tokens: Number of tokens of the source, N.
        longest: Length of the longest sequence the run was declared with, L.
        overlap: Tokens that neighbouring windows share, 0 or 1.
        num_spans: Number of spans, K.
        span_tokens: Tokens of each span, C; fewer than K tokens are left over.
    """

    num_tokens: int
    longest: int
    overlap: int
    num_spans: int
    span_tokens: int

    def stride(self, seq_len: int) -> int:
        """Return the distance between the starts of neighbouring windows."""
        return seq_len - self.overlap

    def windows_left(self, seq_len: int, depth: int) -> int:
        """Return the number of windows that each span still holds at `depth`."""
        return max(0, self.span_tokens - self.overlap - depth) // self.stride(seq_len)

    def windows_per_epoch(self, seq_len: int) -> int:
        """Return the number of windows of a whole epoch, over all spans."""
        return self.num_spans * self.windows_left(seq_len, 0)


def cut_spans(num_tokens: int, longest: int, overlap: int) -> Spans:
    """Cut a source into spans.

    The number of rounds in an epoch of the longest sequences, m, balances two costs. An
    unfinished round wastes 1/m of the source, and the tail of an epoch at most as much;
    more rounds shuffle fewer windows together.
    """
    # ceil(sqrt(N / L) / 2) and ceil(N / (64 L)), exactly.
    quarter = -(-num_tokens // (4 * longest))
    half_root = isqrt(quarter - 1) + 1 if quarter else 0
    rounds = min(100, max(2, half_root, -(-num_tokens // (64 * longest))))
    num_spans = max(1, num_tokens // (longest * rounds))
    return Spans(num_tokens, longest, overlap, num_spans, num_tokens // num_spans)


class Round(NamedTuple):
    """Consecutive samples within one round of a source.

    Attributes:
        epoch: Epoch of the source.
        depth: Tokens used of each span before the round.
        per_span: Windows that the round takes from each span.
        first: First of the samples, counted in the shuffled order of the round.
        size: Number of the samples.
    """

    epoch: int
    depth: int
    per_span: int
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class SampleStream:
    """The endless samples of one length of a source, from an epoch and depth on.

    Attributes:
        spans: How the source is cut.
        seq_len: Tokens of a sample, T.
        epoch: Epoch of the first sample.
        depth: Tokens used of each span before the first sample.
    """

    spans: Spans
    seq_len: int
    epoch: int
    depth: int

    @property
    def first_epoch_samples(self) -> int:
        """Number of samples left in the epoch in which the stream starts."""
        left = self.spans.windows_left(self.seq_len, self.depth)
        return self.spans.num_spans * left

    def samples_until(self, epochs: int) -> int:
        """Return the number of samples before epoch `epochs` of the source starts."""
        if epochs <= self.epoch:
            return 0
        whole = (epochs - self.epoch - 1) * self.spans.windows_per_epoch(self.seq_len)
        return self.first_epoch_samples + whole

    def epochs_started(self, given: int) -> int:
        """Return how many epochs of the source the first `given` samples touch."""
        return self._epoch_of(given - 1)[0] + 1 if given else self.epoch

    def passes(self, given: int) -> float:
        """Return the passes over the source after `given` samples: 1.25 is 5/4."""
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
        per_round = max(1, (spans.longest - spans.overlap) // stride)
        sample = first
        while count:
            epoch, depth, in_epoch = self._epoch_of(sample)
            left = spans.windows_left(self.seq_len, depth)
            number, in_round = divmod(in_epoch, spans.num_spans * per_round)
            for before in range(number * per_round, left, per_round):
                per_span = min(per_round, left - before)
                size = min(count, spans.num_spans * per_span - in_round)
                yield Round(epoch, depth + before * stride, per_span, in_round, size)
                sample += size
                count -= size
                in_round = 0
                if not count:
                    return

    def after(self, given: int) -> tuple[int, int]:
        """Return epoch and depth at the end of the round of the last given sample.

        Args:
            given: Number of samples given, at least 1.
        """
        last = next(self.rounds(given - 1, 1))
        stride = self.spans.stride(self.seq_len)
        return last.epoch, last.depth + last.per_span * stride

    def unfinished_tokens(self, given: int) -> int:
        """Return the tokens left in the round of the last given sample.

        Args:
            given: Number of samples given, at least 1.
        """
        last = next(self.rounds(given - 1, 1))
        left = self.spans.num_spans * last.per_span - last.first - 1
        return left * self.spans.stride(self.seq_len)

    def tail_tokens(self, before: int, given: int, *, is_last: bool) -> int:
        """Return the tokens left out at the ends of epochs between two counts.

        An epoch ends when a sample of the next epoch is given. Until then, a phase of
        another sequence length may use part of what is left of the spans.

        Args:
            before: Samples given earlier; epochs that ended by then do not count.
            given: Samples given in all.
            is_last: Whether these are the last samples of the source, so that an epoch
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

    def _epoch_of(self, sample: int) -> tuple[int, int, int]:
        """Return a sample's epoch, the depth it starts at, and its index therein."""
        first = self.first_epoch_samples
        if sample < first:
            return self.epoch, self.depth, sample
        per_epoch = self.spans.windows_per_epoch(self.seq_len)
        more, in_epoch = divmod(sample - first, per_epoch)
        return self.epoch + 1 + more, 0, in_epoch


class Cursor(NamedTuple):
    """How far a source has been read.

    Attributes:
        stream: The samples of the length it was last read in.
        given: Number of them that have been given.
    """

    stream: SampleStream
    given: int

    def switched_to(self, seq_len: int) -> Cursor:
        """Return the cursor from which samples of another length are read.

        The same length continues the stream; another length starts where the round of
        the last given sample ends.
        """
        if self.stream.seq_len == seq_len:
            return self
        epoch, depth = self.stream.after(self.given)
        return Cursor(SampleStream(self.stream.spans, seq_len, epoch, depth), 0)
