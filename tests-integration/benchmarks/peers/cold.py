"""Evicts the pages of files from the page cache, and measures how many remain.

Linux does not evict pages that a process has mapped, nor pages of a tmpfs, so a
measurement with cold pages must check. Linux reports the pages only of files that the
user owns or may write.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


MOST_STAYING = 0.02
"""Share of the pages that may stay in memory if pages must be cold."""


def drop_all(paths: Iterable[Path]) -> None:
    """Drop files from the page cache.

    Raises:
        OSError: Their pages stay in memory.
    """
    share = drop(paths)
    if share > MOST_STAYING:
        raise OSError(
            f"{share:.0%} of the pages stay in memory; end who has mapped the files, "
            "and use a disk, not a tmpfs"
        )


def drop(paths: Iterable[Path]) -> float:
    """Drop files from the page cache; return the share of their pages that stays."""
    pages = stay = 0
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        states = _residency(path)
        pages += len(states)
        stay += sum(state & 1 for state in states)
    return stay / max(pages, 1)


def _residency(path: Path) -> bytes:
    """Return a byte for each page of a file; its lowest bit is 1 for memory."""
    size = path.stat().st_size
    if not size:
        return b""
    libc = ctypes.CDLL(None, use_errno=True)
    states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    # To be told of a map, `ctypes` wants one that could be written to.
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
        start = ctypes.c_char.from_buffer(pages)
        failed = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), states
        )
        del start
        pages.close()
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", str(path))
    return bytes(states)
