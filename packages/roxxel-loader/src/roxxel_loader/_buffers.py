"""Fresh host memory that JAX can take over without a copy.

On CPU, JAX aliases a numpy buffer that starts on a 64-byte boundary and copies any
other, some of them late. Memory handed over is therefore always fresh, aligned, and
never written again.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGNMENT = 64
"""Bytes; what XLA asks of memory it takes over."""


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised C-ordered array that starts on a 64-byte boundary."""
    num_bytes = prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    byte_offset = -raw.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, raw, byte_offset)


def aligned_copy(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a fresh aligned copy of `values` cast to `dtype`."""
    copy = aligned_empty(values.shape, dtype)
    copy[...] = values
    return copy
