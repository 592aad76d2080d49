"""From samples of sources to the tokens where their windows start."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from roxxel_curriculum._order.bijection import mix_keys, permute_groups

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from roxxel_curriculum._order.rounds import SampleStream


class SampleRange(NamedTuple):
    """Consecutive samples of one stream.

    Attributes:
        stream: The stream.
        key: Key of the source: `make_key(ARITHMETIC_VERSION, seed, name)`.
        first: First sample, counted from the start of the stream.
        size: Number of samples.
    """

    stream: SampleStream
    key: int
    first: int
    size: int


def window_starts(ranges: Iterable[SampleRange]) -> npt.NDArray[np.int64]:
    """Return the first token of every sample, range after range.

    Args:
        ranges: At least one range, of any sources; each has at least one sample.

    Returns:
        New int64 array, with a token of its source for each sample.
    """
    rows: list[tuple[int, ...]] = []
    keys: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    for stream, key, first, count in ranges:
        spans = stream.spans
        stride = spans.stride(stream.seq_len)
        shared = spans.span_tokens, stride, stream.seq_len
        for epoch, depth, per_span, in_round, size in stream.rounds(first, count):
            rows.append((epoch, depth, per_span, in_round, *shared))
            keys.append(key)
            sizes.append(spans.num_spans * per_span)
            counts.append(size)
    epoch, depth, per_span, in_round, span_tokens, stride, seq_len = np.array(
        rows, np.uint64
    ).T
    round_keys = mix_keys(np.array(keys, np.uint64), epoch, depth, seq_len)
    per_round = np.array(counts)
    stops = np.cumsum(per_round)
    # Counts on within each round; unsigned, so a negative difference wraps twice.
    shift = in_round - (stops - per_round).astype(np.uint64)
    index = np.arange(stops[-1], dtype=np.uint64) + np.repeat(shift, per_round)
    window = permute_groups(index, per_round, sizes, round_keys)
    span, in_span = np.divmod(window, np.repeat(per_span, per_round))
    starts = span * np.repeat(span_tokens, per_round)
    starts += np.repeat(depth, per_round)
    starts += in_span * np.repeat(stride, per_round)
    return starts.view(np.int64)
