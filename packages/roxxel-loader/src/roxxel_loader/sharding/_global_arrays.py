"""Which regions of a global array this process holds, and how their values reach JAX.

A box is a rectangular region of an array: one half-open span per axis. A part is the
box that a device holds; a piece is a box with its values. A process reads each part
once, even if several devices hold it.

JAX gets each part in aligned and contiguous memory, in a dtype that devices support.
This memory is never modified, so JAX may alias it on the CPU or transfer it in the
background. A source that fills the loader's arrays writes into this memory, so its
values are copied only once on their way from the file. The loader copies the values of
other sources, which may reuse their own memory immediately.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import jax
import numpy as np
from jax.sharding import (
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

Shape: TypeAlias = tuple[int, ...]
Span: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[Span, ...]
Index: TypeAlias = tuple[slice, ...]
ShardingLike: TypeAlias = "Sharding | Callable[[Shape], Sharding] | None"
"""A sharding, a function from global shape to sharding, or None (default device)."""

_ALIGNMENT = 64
"""Bytes. JAX on the CPU copies a host array that does not start on this boundary."""

_REGISTERED = 2
"""`np.dtype.isbuiltin` of a dtype that a library registers, such as bfloat16."""


@dataclass(frozen=True)
class Layout:
    """The boxes of a global array that this process holds.

    `parts` are the distinct boxes that devices of this process hold.
    """

    shape: Shape
    sharding: Sharding
    parts: tuple[Box, ...]


def layouts(sharding: ShardingLike) -> Callable[[Shape], Layout]:
    """Return a cached function from a global shape to its layout."""
    fixed = sharding if sharding is not None else _default_sharding()
    return cache(lambda shape: make_layout(shape, resolve(fixed, shape)))


def _default_sharding() -> Sharding:
    """Return the sharding of arrays on this process's default device."""
    device: Any = cast("Any", jax.config).jax_default_device
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return SingleDeviceSharding(device)


def resolve(sharding: Any, shape: Shape) -> Sharding:
    """Return `sharding`, or what the function `sharding` returns for `shape`."""
    # `Mesh` inherits `__call__` from ContextDecorator, so `callable` alone accepts it.
    if not isinstance(sharding, Sharding | Mesh) and callable(sharding):
        sharding = sharding(shape)
    if not isinstance(sharding, Sharding):
        raise TypeError(
            f"got a {type(sharding).__name__} instead of a sharding; pass a "
            "jax.sharding.Sharding, such as a config's batch_sharding(mesh), or a "
            "function from shape to sharding"
        )
    return sharding


def make_layout(shape: Shape, sharding: Sharding) -> Layout:
    """Return the layout of an array.

    A spec that splits only rows may have more axes than the array, so that one sharding
    works for `(rows, columns)` and `(rows,)`.
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
            f"{sharding} has no device of this process; build the mesh from devices of "
            "all processes"
        )
    return Layout(shape, sharding, tuple(sorted(boxes)))


def _of_rank(sharding: Sharding, num_axes: int) -> Sharding:
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= num_axes:
        return sharding
    if any(part is not None for part in sharding.spec[num_axes:]):
        raise ValueError(
            f"an array of {num_axes} axes does not fit {sharding}, which splits more "
            "axes; pass the sharding as a function of the shape"
        )
    return first_axes(sharding, num_axes)


def first_axes(sharding: Sharding, num_axes: int) -> Sharding:
    """Return the sharding with only the first `num_axes` entries of its spec."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(
        sharding.mesh,
        PartitionSpec(*sharding.spec[:num_axes]),
        memory_kind=sharding.memory_kind,
    )


def box_of(index: Sequence[Any], shape: Shape) -> Box:
    """Return the box that an index of slices selects."""
    spans = [part.indices(size)[:2] for part, size in zip(index, shape, strict=False)]
    return (*spans, *((0, size) for size in shape[len(spans) :]))


def shape_of(box: Box) -> Shape:
    """Return the shape of the values in a box."""
    return tuple(stop - start for start, stop in box)


def index_in(part: Box, box: Box) -> Index | None:
    """Return the slices of a part within a box; None if the part is not inside."""
    spans = list(zip(part, box, strict=True))
    if all(b[0] <= p[0] and p[1] <= b[1] for p, b in spans):
        return tuple(slice(p[0] - b[0], p[1] - b[0]) for p, b in spans)
    return None


class HostLeaf(NamedTuple):
    """One leaf of a global batch, as the pieces that this process read.

    `shape` is global. Each piece is a box and its values on the host. Two boxes are
    disjoint or equal. Errors name the leaf by `name`. If `is_aligned`, all values are
    arrays of `aligned_empty` that nothing else uses, so JAX may keep them.
    """

    name: str
    shape: Shape
    pieces: Sequence[tuple[Box, npt.NDArray[Any]]]
    is_aligned: bool = False


class HostBatch(NamedTuple):
    """This process's pieces of a global batch, and the structure of the pytree."""

    leaves: Sequence[HostLeaf]
    tree: Any


def host_batch(
    name: str,
    pytrees: Sequence[Any],
    to_leaf: Callable[[str, list[npt.NDArray[Any]]], HostLeaf],
) -> HostBatch:
    """Combine `pytrees`, which have one structure, into one batch.

    Each pytree has a piece of every leaf. `to_leaf(name, values)` makes one leaf from
    the arrays that the pytrees have for it. The name of a leaf is `name` followed by
    the leaf's path.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(pytrees[0])
    columns = zip(*(tree.flatten_up_to(each) for each in pytrees), strict=True)
    leaves = [
        to_leaf(
            name + jax.tree_util.keystr(path), [np.asarray(each) for each in column]
        )
        for (path, _), column in zip(paths, columns, strict=True)
    ]
    return HostBatch(leaves, tree)


def whole_leaf(name: str, values: list[npt.NDArray[Any]]) -> HostLeaf:
    """Return a leaf with one piece: the whole array `values[0]`."""
    shape = values[0].shape
    return HostLeaf(name, shape, [(tuple((0, size) for size in shape), values[0])])


def copy_parts(leaf: HostLeaf, layout: Layout) -> dict[Box, npt.NDArray[Any]]:
    """Return each part of a leaf in aligned memory, which may be the leaf's own."""
    dtype = device_dtype(leaf.pieces[0][1].dtype, leaf.name)
    ready = dict(leaf.pieces) if leaf.is_aligned else {}
    return {
        part: ready[part]
        if part in ready and ready[part].dtype == dtype
        else _aligned_copy(_values(part, leaf), dtype)
        for part in layout.parts
    }


def put_on_devices(layout: Layout, copies: Mapping[Box, npt.NDArray[Any]]) -> jax.Array:
    """Return the global array, which may alias `copies`: do not modify them."""
    return jax.make_array_from_callback(
        layout.shape,
        layout.sharding,
        lambda index: copies[box_of(index or (), layout.shape)],
    )


def device_dtype(dtype: np.dtype[Any], name: str) -> np.dtype[Any]:
    """Return the native-order dtype on devices; 64-bit becomes 32-bit without x64."""
    is_raw = dtype.kind == "V" and dtype.isbuiltin != _REGISTERED
    if dtype.char in "OSUMmgG" or is_raw:
        raise TypeError(
            f"{name} has dtype {dtype}, which devices do not support; drop or encode "
            "the values first, or iterate without a sharding"
        )
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))


def _values(part: Box, leaf: HostLeaf) -> npt.NDArray[Any]:
    for box, values in leaf.pieces:
        index = index_in(part, box)
        if index is not None:
            return values[index]
    found = np.empty(shape_of(part), leaf.pieces[0][1].dtype)
    num_values = 0
    # A process may hold a piece twice, but two different pieces never overlap.
    for box, values in dict(leaf.pieces).items():
        spans = zip(part, box, strict=True)
        shared = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in spans)
        to, of = index_in(shared, part), index_in(shared, box)
        if to is not None and of is not None:
            found[to] = values[of]
            num_values += values[of].size
    if num_values == found.size:
        return found
    raise ValueError(
        f"{leaf.name}: a device needs {part} of an array of shape {leaf.shape}, but "
        f"this process reads {[box for box, _ in leaf.pieces]}; split all leaves of a "
        "batch over the same axes"
    )


def aligned_empty(shape: Shape, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a new array whose memory JAX may use without a copy."""
    num_bytes = prod(shape) * dtype.itemsize
    memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    byte_offset = -memory.ctypes.data % _ALIGNMENT
    return np.ndarray(shape, dtype, memory, byte_offset)


def _aligned_copy(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    copy = aligned_empty(values.shape, dtype)
    copy[...] = values
    return copy
