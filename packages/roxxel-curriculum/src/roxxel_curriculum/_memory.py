"""Memory for a batch, such that a device can take it over without a copy.

JAX on a CPU takes over memory that begins on a 64-byte boundary, and transfers from
there are the fastest on accelerators too. numpy aligns to 16 bytes.
"""

from __future__ import annotations

from ctypes import addressof, c_char
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes."""

WORTH_ALIGNING_BYTES = 100 << 10
"""A smaller batch is copied in less time than aligning it takes."""

_BYTE = np.dtype(np.uint8)
_char_at: Any = c_char.from_buffer


def is_worth_aligning(shape: tuple[int, int], dtype: np.dtype[Any]) -> bool:
    """Return whether a batch of this shape is to be aligned."""
    return shape[0] * shape[1] * dtype.itemsize >= WORTH_ALIGNING_BYTES


def new_batch(shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array of `shape`, aligned if that is worth it."""
    if is_worth_aligning(shape, dtype):
        return aligned_batch(shape, dtype)
    return np.empty(shape, dtype)


def aligned_batch(shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array of `shape` on a 64-byte boundary.

    Nothing but the array refers to its base, which owns the memory.
    """
    # The bytes as above, without a call.
    raw = np.empty(shape[0] * shape[1] * dtype.itemsize + ALIGNMENT, _BYTE)
    # A quarter of the time that numpy takes to tell it.
    byte_offset = -addressof(_char_at(raw)) % ALIGNMENT
    return np.ndarray(shape, dtype, raw, byte_offset)
