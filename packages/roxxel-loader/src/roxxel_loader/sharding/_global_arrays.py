"""Host values as global arrays: one aligned copy per distinct part, then JAX.

The copy makes the values contiguous, casts them to a dtype of the device and owns its
memory. Nobody writes to the copy again, so JAX may alias it on the CPU or read it in
the background, and the caller may reuse the original at once.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ._layout import box_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from ._layout import Box, Layout

_ALIGNMENT = 64
"""Bytes. JAX on the CPU copies a host array again unless it starts on this boundary."""

_REGISTERED = 2
"""`np.dtype.isbuiltin` of dtypes that a library registers, such as bfloat16."""


def to_global_array(
    layout: Layout, parts: Sequence[npt.NDArray[Any]], name: str
) -> jax.Array:
    """Return the global array whose local values are `parts`, which are copied.

    Args:
        layout: Shape and sharding of the array.
        parts: The values of `layout.reads`, in their order.
        name: Name of the array in errors.

    Raises:
        TypeError: No device holds values of this dtype.
    """
    return put_on_devices(layout, copy_parts(layout, parts, name))


def copy_parts(
    layout: Layout, parts: Sequence[npt.NDArray[Any]], name: str
) -> dict[Box, npt.NDArray[Any]]:
    """Return a copy of each distinct part that a device holds; see `to_global_array`.

    Raises:
        TypeError: No device holds values of this dtype.
    """
    dtype = device_dtype(parts[0].dtype, name)
    return {
        box: _aligned_copy(parts[number][index], dtype)
        for box, (number, index) in layout.cuts.items()
    }


def put_on_devices(layout: Layout, copies: Mapping[Box, npt.NDArray[Any]]) -> jax.Array:
    """Return the global array of the copies, which nobody may write to."""
    return jax.make_array_from_callback(
        layout.shape,
        layout.sharding,
        lambda index: copies[box_of(index or (), layout.shape)],
    )


def device_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the dtype that values have on the device, in the machine's byte order.

    64-bit dtypes become 32-bit unless JAX has 64 bits enabled.

    Raises:
        TypeError: No device holds such values.
    """
    is_raw = dtype.kind == "V" and dtype.isbuiltin != _REGISTERED
    if dtype.char in "OSUMmgG" or is_raw:
        raise TypeError(
            f"{name} has dtype {dtype}, which no device holds; drop or encode the "
            "values first, or iterate without a sharding"
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


def _aligned_copy(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    num_bytes = prod(values.shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    byte_offset = -memory.ctypes.data % _ALIGNMENT
    copy = np.ndarray(values.shape, dtype, memory, byte_offset)
    copy[...] = values
    return copy
