"""Which rows and columns of a global batch this process's devices hold.

A sharding says which part of an array every device holds. From it follow the reads of
this process (each row and column once, neighbouring parts in one read) and the pieces
that go to the devices (each distinct one once, however many devices hold it).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import jax
from jax.sharding import (
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from roxxel_loader._buffers import ALIAS_BYTES
from roxxel_loader.sharding._put import put_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_loader.sharding._put import Put

Shape: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Span, ...]
Index: TypeAlias = tuple[slice, ...]
ShardingLike: TypeAlias = "Sharding | Callable[[Shape], Sharding] | None"
"""A sharding, a function from global shape to one, or None for the default device."""


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
        cuts: For each piece the number of its read, and where it lies in that.
        alias_bytes: Bytes from which on the devices do better to take a piece over.
        put: Makes arrays of such a piece, where one read is the only one; else None.
    """

    shape: Shape
    sharding: Sharding
    pieces: tuple[Box, ...]
    reads: tuple[Box, ...]
    cuts: tuple[tuple[int, Index], ...]
    alias_bytes: int
    put: Put | None


class Layouts:
    """The layouts met so far; shapes are few, batches many."""

    def __init__(self, sharding: ShardingLike) -> None:
        self._sharding = sharding if sharding is not None else default_sharding()
        self._known: dict[Shape, Layout] = {}

    def of(self, shape: Shape, step: int) -> Layout:
        """Return the layout for a shape, which is the one of a step.

        Raises:
            ValueError: The sharding does not fit the shape; the note names the step.
        """
        layout = self._known.get(shape)
        if layout is None:
            layout = self._known[shape] = self._make(tuple(shape), step)
        return layout

    def _make(self, shape: Shape, step: int) -> Layout:
        try:
            return make_layout(shape, resolve(self._sharding, shape))
        except ValueError as error:
            error.add_note(f"while placing the batch of step {step}")
            raise


def default_sharding() -> Sharding:
    """Return the placement on the default device of this process."""
    device: Any = cast("Any", jax.config).jax_default_device
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return SingleDeviceSharding(device)


def resolve(sharding: ShardingLike, shape: Shape) -> Sharding:
    """Return the sharding for an array of `shape`.

    Raises:
        TypeError: What was given is none and makes none.
    """
    if sharding is None:
        return default_sharding()
    found: Any = sharding
    # A mesh can be called too, by an accident of how it is made.
    if not isinstance(found, Sharding | Mesh) and callable(found):
        found = found(shape)
    if not isinstance(found, Sharding):
        raise TypeError(
            f"sharding gives a {type(found).__name__}; pass a jax.sharding.Sharding, "
            "such as a config's batch_sharding(mesh), or a function from shape to one"
        )
    return found


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
    if not pieces:
        raise ValueError(
            f"no device of this process is in {sharding}; build it over devices of all "
            "processes"
        )
    reads = _merge(pieces)
    cuts = tuple(_cut(piece, reads) for piece in pieces)
    platforms = {device.platform for device in indices}
    alias_bytes = ALIAS_BYTES if "cpu" in platforms else sys.maxsize
    put = put_for(shape, sharding) if len(pieces) == 1 else None
    return Layout(shape, sharding, pieces, reads, cuts, alias_bytes, put)


def _of_rank(sharding: Sharding, num_axes: int) -> Sharding:
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= num_axes:
        return sharding
    if any(part is not None for part in sharding.spec[num_axes:]):
        raise ValueError(
            f"an array of {num_axes} axes cannot be placed with {sharding}, which "
            "splits a later axis; pass the sharding as a function of the shape"
        )
    return NamedSharding(
        sharding.mesh,
        PartitionSpec(*sharding.spec[:num_axes]),
        memory_kind=sharding.memory_kind,
    )


def rows_only(sharding: Sharding) -> Sharding:
    """Return how a sharding splits the first axis, for arrays that have only that."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(
        sharding.mesh,
        PartitionSpec(*sharding.spec[:1]),
        memory_kind=sharding.memory_kind,
    )


def box_of(index: Sequence[Any], shape: Shape) -> Box:
    """Return an index made of slices as one half-open span per axis."""
    spans = [part.indices(size)[:2] for part, size in zip(index, shape, strict=False)]
    return (*spans, *((0, size) for size in shape[len(spans) :]))


def index_of(box: Box) -> Index:
    """Return a box as an index."""
    return tuple(slice(start, stop) for start, stop in box)


def _cut(piece: Box, reads: Sequence[Box]) -> tuple[int, Index]:
    """Return the number of the read that holds a piece, and the piece's index in it."""
    for number, read in enumerate(reads):
        if all(r[0] <= p[0] and p[1] <= r[1] for p, r in zip(piece, read, strict=True)):
            return number, tuple(
                slice(p[0] - r[0], p[1] - r[0])
                for p, r in zip(piece, read, strict=True)
            )
    raise AssertionError(f"no read holds piece {piece}")


def _merge(pieces: tuple[Box, ...]) -> tuple[Box, ...]:
    """Join pieces that differ in one axis and touch there, axis by axis."""
    boxes = list(pieces)
    for axis in reversed(range(len(pieces[0]))):
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
