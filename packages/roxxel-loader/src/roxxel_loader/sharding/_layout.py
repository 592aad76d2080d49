"""Which rows and columns of a global batch this process's devices hold.

A sharding gives the part of an array that each device holds. A layout derives from it
what this process reads (each row and column once, adjacent parts in one read) and the
distinct parts of its devices (each once, however many devices hold it).
"""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        sharding: The sharding of the array.
        reads: Disjoint parts that together cover the parts of this process's devices.
        cuts: For each distinct part of a device, as a half-open span per axis: the
            number of the read that contains the part, and the part's index in it.
    """

    shape: Shape
    sharding: Sharding
    reads: tuple[Box, ...]
    cuts: Mapping[Box, tuple[int, Index]]


class Layouts:
    """The layouts of one sharding by shape; a run has few shapes and many batches."""

    def __init__(self, sharding: ShardingLike) -> None:
        self._sharding = sharding if sharding is not None else default_sharding()
        self._known: dict[Shape, Layout] = {}

    def of(self, shape: Shape) -> Layout:
        """Return the layout of a shape.

        Raises:
            ValueError: The sharding does not fit the shape.
        """
        layout = self._known.get(shape)
        if layout is None:
            layout = make_layout(tuple(shape), resolve(self._sharding, shape))
            self._known[shape] = layout
        return layout


def default_sharding() -> Sharding:
    """Return the sharding onto the default device of this process."""
    device: Any = cast("Any", jax.config).jax_default_device
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return SingleDeviceSharding(device)


def resolve(sharding: ShardingLike, shape: Shape) -> Sharding:
    """Return the sharding for an array of `shape`.

    Raises:
        TypeError: `sharding` is not a sharding and does not return one.
    """
    if sharding is None:
        return default_sharding()
    found: Any = sharding
    # `Mesh` inherits `__call__` from ContextDecorator, so `callable` alone accepts it.
    if not isinstance(found, Sharding | Mesh) and callable(found):
        found = found(shape)
    if not isinstance(found, Sharding):
        raise TypeError(
            f"sharding gives a {type(found).__name__}; pass a jax.sharding.Sharding, "
            "such as a config's batch_sharding(mesh), or a function from shape to one"
        )
    return found


def make_layout(shape: Shape, sharding: Sharding) -> Layout:
    """Return the layout of an array.

    Trailing None axes of the spec beyond the array's axes are dropped, so one sharding
    serves `(rows, columns)` and `(rows,)`.

    Raises:
        ValueError: The sharding does not fit the shape.
    """
    sharding = _of_rank(sharding, len(shape))
    try:
        indices = sharding.addressable_devices_indices_map(shape)
    except ValueError as error:
        raise ValueError(
            f"an array of shape {shape} does not fit {sharding}: {error}; "
            "choose sizes that divide, or pass the sharding as a function of the shape"
        ) from error
    boxes = {box_of(index, shape) for index in indices.values() if index is not None}
    if not boxes:
        raise ValueError(
            f"no device of this process is in {sharding}; build the mesh from devices "
            "of all processes"
        )
    reads = _merge(boxes)
    return Layout(shape, sharding, reads, {box: _cut(box, reads) for box in boxes})


def _of_rank(sharding: Sharding, num_axes: int) -> Sharding:
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= num_axes:
        return sharding
    if any(part is not None for part in sharding.spec[num_axes:]):
        raise ValueError(
            f"an array of {num_axes} axes does not fit {sharding}, which "
            "splits a later axis; pass the sharding as a function of the shape"
        )
    return NamedSharding(
        sharding.mesh,
        PartitionSpec(*sharding.spec[:num_axes]),
        memory_kind=sharding.memory_kind,
    )


def rows_only(sharding: Sharding) -> Sharding:
    """Return the sharding of the first axis alone, for arrays of one axis."""
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


def _cut(part: Box, reads: Sequence[Box]) -> tuple[int, Index]:
    """Return the number of the read that contains a part, and its index in the read."""
    for number, read in enumerate(reads):
        if all(r[0] <= p[0] and p[1] <= r[1] for p, r in zip(part, read, strict=True)):
            return number, tuple(
                slice(p[0] - r[0], p[1] - r[0]) for p, r in zip(part, read, strict=True)
            )
    raise AssertionError(f"no read contains part {part}")


def _merge(parts: set[Box]) -> tuple[Box, ...]:
    """Join adjacent parts that are equal in all other axes, axis by axis."""
    boxes = list(parts)
    for axis in reversed(range(len(boxes[0]))):
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
