"""The token ranges to prefetch for windows that will be read.

Linux reads at most its read-ahead setting (128 KiB by default) for one `MADV_WILLNEED`,
so long ranges are cut. A disk serves few large requests sooner than many small ones, so
windows near each other are merged.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_GAP_BYTES = 32 << 10
"""Greatest gap between two windows that are merged."""

_CALL_BYTES = (128 << 10) - mmap.PAGESIZE
"""Bytes of one call; one page less than Linux reads, because a call may begin inside
a page."""


def stretches(
    starts: Sequence[int], length: int, item_size: int
) -> Iterator[tuple[int, int]]:
    """Yield the token ranges `(start, stop)` to prefetch, ascending.

    Args:
        starts: First token of each window.
        length: Tokens of each window.
        item_size: Bytes of a token.
    """
    if not (len(starts) and length):
        return
    begins = np.sort(np.array(starts, np.int64))
    is_far = begins[1:] - begins[:-1] > length + _GAP_BYTES // item_size
    (cuts,) = np.nonzero(is_far)
    firsts = begins[np.concatenate(([0], cuts + 1))].tolist()
    stops = (begins[np.concatenate((cuts, [begins.size - 1]))] + length).tolist()
    size = max(1, _CALL_BYTES // item_size)
    for first, stop in zip(firsts, stops, strict=True):
        for start in range(first, stop, size):
            yield start, min(start + size, stop)
