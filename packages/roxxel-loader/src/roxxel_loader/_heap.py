"""What the C library does with the memory that batches leave."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import numpy as np

_LARGE_BLOCK = 31 << 20
"""Bytes; glibc takes no measure of blocks above 32 MiB."""


@cache
def keep_freed_memory() -> None:
    """Let glibc keep what batches leave at the end of its heap, for those to come.

    Several batches are freed before as many are made, and free memory at the end of the
    heap goes back to the system: then every page of the next ones is a fault, which
    takes longer than filling it. glibc keeps twice the largest block that it has mapped
    alone and freed (mallopt(3), `M_MMAP_THRESHOLD`), so 62 MiB once such a block was
    freed; it is never touched, so it takes no memory. Thresholds that the user has set
    stay, and other C libraries only make and free a block.
    """
    with suppress(MemoryError):
        np.empty(_LARGE_BLOCK, np.uint8)
