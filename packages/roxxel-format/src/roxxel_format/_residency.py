"""Which pages of a mapped file are in memory already, as far as the system tells."""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roxxel_format._dtypes import Tokens


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


def is_resident(tokens: Tokens) -> bool:
    """Return whether every page of a view of a map is in memory."""
    libc = _libc()
    if libc is None:
        return False
    address = int(tokens.__array_interface__["data"][0])
    start = address - address % mmap.PAGESIZE
    num_bytes = address + tokens.nbytes - start
    pages = (ctypes.c_ubyte * -(-num_bytes // mmap.PAGESIZE))()
    failed = libc.mincore(start, num_bytes, pages)
    return not failed and all(page & 1 for page in pages)


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
