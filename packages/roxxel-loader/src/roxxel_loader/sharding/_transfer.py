"""From values in host memory to a global array: pieces assembled, then transferred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from roxxel_loader._buffers import (
    fresh_copy,
    is_taken_over,
    is_unshared,
    to_hand_over,
)

from ._layout import box_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from ._layout import Layout

_REGISTERED = 2
"""What numpy calls a dtype that a library has added to its own, such as bfloat16."""


def place(
    layout: Layout, parts: list[npt.NDArray[Any]], name: str = "the batch"
) -> jax.Array:
    """Return the global array of which this process gives its part.

    Args:
        layout: Where the array goes.
        parts: The values of `layout.reads`, in their order. Those that anybody but the
            list refers to are copied, so they may be views, and reused afterwards.
        name: What to call the array in an error.

    Raises:
        TypeError: The values are of a dtype that no device holds.
    """
    return transfer(layout, assemble(layout, parts, name))


def assemble(
    layout: Layout, parts: list[npt.NDArray[Any]], name: str = "the batch"
) -> list[npt.NDArray[Any]]:
    """Return the layout's pieces, in memory that nobody will write to."""
    dtype = device_dtype(parts[0].dtype, name)
    if parts[0].dtype != dtype:
        return [
            fresh_copy(parts[number][index], dtype) for number, index in layout.cuts
        ]
    if layout.put is not None:
        return [to_hand_over(parts, 0, layout.alias_bytes)]
    ours = [is_unshared(parts, place) for place in range(len(parts))]
    pieces = [parts[number][index] for number, index in layout.cuts]
    return [
        piece
        if ours[number] and is_taken_over(piece, layout.alias_bytes)
        else fresh_copy(piece, dtype)
        for piece, (number, _) in zip(pieces, layout.cuts, strict=True)
    ]


def transfer(layout: Layout, pieces: Sequence[npt.NDArray[Any]]) -> jax.Array:
    """Return the global array of pieces, which must not be written to again."""
    if layout.put is not None:
        return layout.put(pieces[0])[0]
    by_box = dict(zip(layout.pieces, pieces, strict=True))
    return jax.make_array_from_callback(
        layout.shape,
        layout.sharding,
        lambda index: by_box[box_of(index or (), layout.shape)],
    )


def device_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the dtype that values have on the device, in the machine's byte order.

    Those of 64 bits keep them only where JAX has them enabled.

    Raises:
        TypeError: No device holds such values.
    """
    if dtype.kind in "iufb" and dtype.itemsize < 8 and dtype.isnative:
        return dtype
    is_raw = dtype.kind == "V" and dtype.isbuiltin != _REGISTERED
    if dtype.char in "OSUMmgG" or is_raw:
        raise TypeError(
            f"{name} has dtype {dtype}, which no device holds; drop or encode it "
            "before it is placed, or iterate without a sharding"
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))
