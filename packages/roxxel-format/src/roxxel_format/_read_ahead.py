"""Which stretches to ask the system for, so that windows are in memory when read.

To ask takes microseconds a call on the caller's own thread, and a disk answers a few
large requests sooner than many small ones, of which many can do only some thousands a
second. So windows near each other are asked for as one stretch. Of a corpus that
memory holds with ease, what surrounds them is too: it is read some time in the epoch.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

GAP_BYTES = 32 << 10
"""What lies between two windows is asked for as well if it is no more."""

CALL_BYTES = 128 << 10
"""What is asked for in one call. Linux reads no more of one than it is set to read
ahead, which is so much by default, and around a page that is missing too."""

SHARE_OF_MEMORY = 16
"""One part in so many of the memory holds a corpus with ease."""

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def block_of(num_tokens: int, item_size: int) -> int:
    """Return the tokens that are asked for together, from a multiple of them on.

    Args:
        num_tokens: Of the corpus.
        item_size: Bytes of a token.
    """
    if num_tokens * item_size > _memory() // SHARE_OF_MEMORY:
        return 1
    return max(1, CALL_BYTES // item_size)


@cache
def _memory() -> int:
    """Return the bytes of memory this process may have, 0 where that is not known."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
    try:  # what a container may have, with the pages of files counted in
        return min(machine, int(_CONTAINER_LIMIT.read_text(encoding="ascii")))
    except (OSError, ValueError):  # no container, or no limit
        return machine


def stretches(
    starts: npt.NDArray[np.int64], length: int, item_size: int, block: int
) -> Iterator[tuple[int, int]]:
    """Yield first token and one past the last of what to ask for, a call each.

    Args:
        starts: First token of each window, in the order they will be read in;
            shape `(n,)`, n at least 1.
        length: Tokens of each, at least 1.
        item_size: Bytes of a token.
        block: Tokens that are asked for together; the last stretch may end up to so
            many behind the last window.

    Yields:
        Stretches in the order of the first windows in them.
    """
    order = np.argsort(starts, kind="stable")
    begins = starts[order] // block * block
    stops = -((starts[order] + length) // -block) * block
    is_far = begins[1:] - stops[:-1] > GAP_BYTES // item_size
    lasts = np.append(np.flatnonzero(is_far), begins.size - 1)
    firsts = np.append(0, lasts[:-1] + 1)
    by_need = np.argsort(np.minimum.reduceat(order, firsts))
    call = max(1, CALL_BYTES // item_size)
    for first, last in zip(firsts[by_need], lasts[by_need], strict=True):
        stop = int(stops[last])
        for begin in range(int(begins[first]), stop, call):
            yield begin, min(begin + call, stop)
