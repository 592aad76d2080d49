"""Which stretches to ask the system for, so that windows are in memory when read.

Each call takes the caller some microseconds, and a disk serves a few large requests
sooner than many small ones. So windows near each other are asked for in one call. Of a
corpus that is small beside the memory, what lies around each window is asked for too:
most of it is read later in the epoch.
"""

from __future__ import annotations

import mmap
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

GAP_BYTES = 32 << 10
"""Greatest gap between two windows that are asked for together."""

CALL_BYTES = (128 << 10) - mmap.PAGESIZE
"""Most that is asked for in one call. Linux reads no more of one than its read-ahead
setting, 128 KiB by default, counted in whole pages; a call may begin inside one."""

MEMORY_PARTS = 16
"""A corpus of at most one such part of the memory is read around its windows."""

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def calls(
    starts: npt.NDArray[np.int64], length: int, item_size: int, num_tokens: int
) -> Iterator[tuple[int, int]]:
    """Yield first token and one past the last of what to ask for, call by call.

    Args:
        starts: First token of each window, in the order they will be read in;
            shape `(n,)`, n at least 1.
        length: Tokens of each, at least 1.
        item_size: Bytes of a token.
        num_tokens: Tokens of the corpus, where all windows lie.
    """
    if num_tokens * item_size <= _memory() // MEMORY_PARTS:
        return _blocks_around(starts, length, item_size, num_tokens)
    return _stretches(starts, length, item_size)


@cache
def _memory() -> int:
    """Return the bytes of memory this process may have, 0 where that is not known."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    try:  # what a container may have, with the pages of files counted in
        return min(machine, int(_CONTAINER_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # none that can be seen from here
        return machine


def _blocks_around(
    starts: npt.NDArray[np.int64], length: int, item_size: int, num_tokens: int
) -> Iterator[tuple[int, int]]:
    """Yield the blocks of `CALL_BYTES` that windows touch, in the order of need."""
    size = max(1, CALL_BYTES // item_size)
    first, last = starts // size, (starts + (length - 1)) // size
    width = int((last - first).max()) + 1
    touched = np.minimum(first[:, None] + np.arange(width), last[:, None])
    blocks, need = np.unique(touched, return_index=True)
    for block in blocks[np.argsort(need)].tolist():
        yield block * size, min((block + 1) * size, num_tokens)


def _stretches(
    starts: npt.NDArray[np.int64], length: int, item_size: int
) -> Iterator[tuple[int, int]]:
    """Yield the stretches of near windows, in parts of `CALL_BYTES`.

    Stretches are in the order of the first windows in them.
    """
    order = np.argsort(starts, kind="stable")
    begins = starts[order]
    stops = begins + length
    is_far = begins[1:] - stops[:-1] > GAP_BYTES // item_size
    cuts = np.flatnonzero(is_far) + 1
    groups = np.concatenate(([0], cuts)), np.concatenate((cuts, [order.size])) - 1
    by_need = np.argsort(np.minimum.reduceat(order, groups[0]))
    size = max(1, CALL_BYTES // item_size)
    for first, last in zip(groups[0][by_need], groups[1][by_need], strict=True):
        stop = int(stops[last])
        for start in range(int(begins[first]), stop, size):
            yield start, min(start + size, stop)
