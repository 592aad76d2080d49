"""Memory for a batch, such that a device can take it over without a copy.

JAX on a CPU takes over memory that begins on a 64-byte boundary, and transfers from
there are the fastest on accelerators too. numpy aligns to 16 bytes.
"""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any, cast

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
WORTH_ALIGNING_BYTES = 100 << 10
"""A smaller batch is copied in less time than aligning it takes."""

_BYTE = np.dtype(np.uint8)
_char_at = c_char.from_buffer


def is_worth_aligning(shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
    """Return whether a batch of this shape is to be aligned."""
    return _num_bytes(shape, dtype) >= WORTH_ALIGNING_BYTES


def new_batch(shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array of `shape`, on a 64-byte boundary if it is large.

    It owns its memory, alone or through a base that nothing else refers to.
    """
    num_bytes = _num_bytes(shape, dtype)
    if num_bytes < WORTH_ALIGNING_BYTES:
        return np.empty(shape, dtype)
    raw = np.empty(num_bytes + ALIGNMENT, _BYTE)
    # A quarter of the time that numpy takes to tell it.
    byte_offset = -addressof(_char_at(cast("Any", raw))) % ALIGNMENT
    return np.ndarray(shape, dtype, raw, byte_offset)


def _num_bytes(shape: tuple[int, int], dtype: np.dtype[Any]) -> int:
    return shape[0] * shape[1] * dtype.itemsize
