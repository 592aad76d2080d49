"""Which pages of a mapped file are in memory already, as far as the system tells."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_format._spec.dtypes import Tokens


def is_told(path: str) -> bool:
    """Return whether the system tells which pages of a file are in memory.

    Linux says of files that belong to somebody else that all are (since 5.2; see
    mincore(2)).
    """
    if _libc() is None:
        return False
    try:
        owner = Path(path).stat().st_uid
    except OSError:
        return False
    return os.geteuid() in {0, owner}


def are_resident(tokens: Tokens, spans: Iterable[tuple[int, int]]) -> bool:
    """Return whether all pages of some tokens are in memory.

    Args:
        tokens: A view of a map.
        spans: Start and stop of each stretch of it, none empty.
    """
    libc = _libc()
    if libc is None:
        return False
    size, page = tokens.itemsize, mmap.PAGESIZE
    address = int(tokens.__array_interface__["data"][0])
    asked: list[tuple[int, int]] = []
    for start, stop in spans:
        first = (address + start * size) // page
        asked.append((first, -(-(address + stop * size) // page) - first))
    told = np.zeros(sum(count for _, count in asked), np.uint8)
    place = int(told.__array_interface__["data"][0])
    for first, count in asked:
        if libc.mincore(first * page, count * page, place):
            return False
        place += count
    return bool((told & 1).all())


@cache
def _libc() -> Any:
    """Return the C library, None where it cannot tell."""
    if os.name != "posix":
        return None
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mincore"):
        return None
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return libc
