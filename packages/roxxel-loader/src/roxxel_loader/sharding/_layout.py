"""Which rows and columns of a global batch this process's devices hold.

A sharding says which part of an array every device holds. From it follow the reads of
this process (each row and column once, neighbouring parts in one read) and the pieces
that go to the devices (each distinct one once, however many devices hold it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from roxxel_loader._buffers import aligned_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from jax.sharding import Sharding

Shape: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True)
class Layout:
    """What this process holds of an array of `shape` under `sharding`.

    Attributes:
        shape: The global shape.
        sharding: Where the parts of the array lie.
        pieces: The distinct parts that devices of this process hold, each a half-open
            span per axis, in order of position.
        reads: Parts that together are the pieces and share no element; each piece lies
            in exactly one.
    """

    shape: Shape
    sharding: Sharding
    pieces: tuple[Box, ...]
    reads: tuple[Box, ...]

    @property
    def is_one_piece(self) -> bool:
        """Whether one read is at once the only piece."""
        return self.reads == self.pieces and len(self.pieces) == 1


def make_layout(shape: Shape, sharding: Sharding) -> Layout:
    """Return the layout of an array, or say why the sharding does not fit it.

    A spec that names more axes than the array has is cut where it says None, so that
    one sharding serves `(rows, columns)` and `(rows,)`.

    Raises:
        ValueError: The sharding does not fit the shape.
    """
    sharding = _of_rank(sharding, len(shape))
    try:
        indices = sharding.addressable_devices_indices_map(shape)
    except ValueError as error:
        raise ValueError(
            f"an array of shape {shape} cannot be placed with {sharding}: {error}; "
            "choose sizes that divide, or pass the sharding as a function of the shape"
        ) from error
    boxes = {box_of(index, shape) for index in indices.values() if index is not None}
    pieces = tuple(sorted(boxes))
    return Layout(shape, sharding, pieces, _merge(pieces))


def _of_rank(sharding: Sharding, num_axes: int) -> Sharding:
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= num_axes:
        return sharding
    if any(part is not None for part in sharding.spec[num_axes:]):
        raise ValueError(
            f"an array of {num_axes} axes cannot be placed with {sharding}, which "
            "splits a later axis; pass the sharding as a function of the shape"
        )
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:num_axes]))


def rows_only(sharding: Sharding) -> Sharding:
    """Return how a sharding splits the first axis, for arrays that have only that."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:1]))


def box_of(index: Sequence[Any], shape: Shape) -> Box:
    """Return an index made of slices as one half-open span per axis."""
    spans = [part.indices(size)[:2] for part, size in zip(index, shape, strict=False)]
    return (*spans, *((0, size) for size in shape[len(spans) :]))


def place(
    layout: Layout, parts: Sequence[npt.NDArray[Any]], name: str = "the batch"
) -> jax.Array:
    """Return the global array of which this process gives its part.

    Args:
        layout: Where the array goes.
        parts: The values of `layout.reads`, in their order. They are copied, so they
            may be views, and reused afterwards.
        name: What to call the array in an error.

    Raises:
        TypeError: The values are of a dtype that JAX does not know.
    """
    return assemble(layout, parts, name)()


def assemble(
    layout: Layout, parts: Sequence[npt.NDArray[Any]], name: str = "the batch"
) -> Callable[[], jax.Array]:
    """Copy this process's pieces to fresh memory; the call returned places them."""
    dtype = device_dtype(parts[0].dtype, name)
    if layout.is_one_piece:
        only = aligned_copy(parts[0], dtype)
        return lambda: jax.make_array_from_callback(
            layout.shape, layout.sharding, lambda _: only
        )
    buffers = {
        piece: aligned_copy(_cut(piece, layout.reads, parts), dtype)
        for piece in layout.pieces
    }
    return lambda: jax.make_array_from_callback(
        layout.shape,
        layout.sharding,
        lambda index: buffers[box_of(index or (), layout.shape)],
    )


def device_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the dtype that values have on the device, 64 bits only where enabled."""
    if dtype.kind in "OSUMm" or dtype.names is not None:
        raise TypeError(
            f"{name} has dtype {dtype}, which no device holds; drop or encode it "
            "before it is placed, or iterate without a sharding"
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def _cut(
    piece: Box, reads: Sequence[Box], parts: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    for read, part in zip(reads, parts, strict=True):
        if all(r[0] <= p[0] and p[1] <= r[1] for p, r in zip(piece, read, strict=True)):
            return part[
                tuple(
                    slice(p[0] - r[0], p[1] - r[0])
                    for p, r in zip(piece, read, strict=True)
                )
            ]
    raise AssertionError(f"no read holds piece {piece}")


def _merge(pieces: tuple[Box, ...]) -> tuple[Box, ...]:
    """Join pieces that differ in one axis and touch there, axis by axis."""
    boxes = list(pieces)
    num_axes = len(boxes[0]) if boxes else 0
    for axis in reversed(range(num_axes)):
        boxes.sort(
            key=lambda box, axis=axis: (*box[:axis], *box[axis + 1 :], box[axis])
        )
        merged: list[Box] = []
        for box in boxes:
            if merged and _touch(merged[-1], box, axis):
                span = (merged[-1][axis][0], box[axis][1])
                merged[-1] = (*box[:axis], span, *box[axis + 1 :])
            else:
                merged.append(box)
        boxes = merged
    return tuple(sorted(boxes))


def _touch(left: Box, right: Box, axis: int) -> bool:
    return (
        left[:axis] == right[:axis]
        and left[axis + 1 :] == right[axis + 1 :]
        and left[axis][1] == right[axis][0]
    )
