"""Host memory that JAX may take over: never written to again, by anybody.

JAX on CPU aliases a numpy buffer that starts on a 64-byte boundary and copies any
other, small ones at once, large ones late and by a thread of its own, which costs more
than a copy made here; to an accelerator it copies in the background. So memory handed
over must not change afterwards. An array that nobody else refers to cannot, and goes as
it is unless a copy is cheaper; any other is copied first.
"""

from __future__ import annotations

import sys
from ctypes import addressof, c_char
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGNMENT = 64
"""Bytes; what XLA asks of memory it takes over."""

ALIAS_BYTES = 100 << 10
"""From this size on an alias costs less than the copy that the usual call makes."""

_char_at: Any = c_char.from_buffer


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised C-ordered array that starts on a 64-byte boundary."""
    num_bytes = prod(shape) * dtype.itemsize
    raw = np.empty(num_bytes + ALIGNMENT, np.uint8)
    byte_offset = -_address(raw) % ALIGNMENT
    return np.ndarray(shape, dtype, raw, byte_offset)


def fresh_copy(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a C-ordered copy of `values` cast to `dtype`, aligned where that pays."""
    if values.size * dtype.itemsize < ALIAS_BYTES:
        return np.array(values, dtype, order="C")
    copy = aligned_empty(values.shape, dtype)
    copy[...] = values
    return copy


def to_hand_over(
    arrays: list[npt.NDArray[Any]], place: int, alias_bytes: int
) -> npt.NDArray[Any]:
    """Return an array that JAX may keep: the one of the list, or a copy of it.

    Args:
        arrays: The list that holds the only reference, if no copy is to be made.
        place: Which of its arrays.
        alias_bytes: Size from which the devices alias aligned memory with profit.
    """
    if is_unshared(arrays, place) and is_taken_over(arrays[place], alias_bytes):
        return arrays[place]
    return fresh_copy(arrays[place], arrays[place].dtype)


def is_taken_over(array: npt.NDArray[Any], alias_bytes: int) -> bool:
    """Return whether an array goes to the devices as it is no slower than a copy."""
    return array.nbytes < alias_bytes or (
        array.flags.c_contiguous and _address(array) % ALIGNMENT == 0
    )


def is_unshared(arrays: list[npt.NDArray[Any]], place: int) -> bool:
    """Return whether only the list refers to an array's memory, so nobody can write it.

    Args:
        arrays: The list that holds the only reference, if the answer is to be yes.
        place: Which of its arrays.
    """
    if sys.getrefcount(arrays[place]) != _UNSHARED:
        return False
    base = arrays[place].base
    if base is None:
        return arrays[place].flags.owndata
    return (
        type(base) is np.ndarray
        and base.flags.owndata
        and sys.getrefcount(base) == _UNSHARED_BASE
    )


def _address(array: npt.NDArray[Any]) -> int:
    """Return where a C-ordered array begins in memory."""
    try:
        # A quarter of the time that numpy takes to tell it.
        return addressof(_char_at(array))
    except (TypeError, ValueError):  # read-only, or of a dtype that numpy did not make
        return int(array.__array_interface__["data"][0])


def _references(arrays: list[npt.NDArray[Any]]) -> tuple[int, int]:
    """Count what the interpreter counts where only the list refers to an array."""
    base = arrays[0].base
    return sys.getrefcount(arrays[0]), sys.getrefcount(base)


_UNSHARED, _UNSHARED_BASE = _references([np.empty((2, 2)).reshape(4)])
