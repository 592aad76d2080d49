"""Conversions between the rows of each process and global arrays."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ._global_arrays import (
    Box,
    Span,
    box_of,
    copy_parts,
    device_dtype,
    first_axes,
    host_batch,
    make_layout,
    put_on_devices,
    whole_leaf,
)

if TYPE_CHECKING:
    import numpy.typing as npt
    from jax.sharding import Sharding

    from ._global_arrays import HostLeaf

__all__ = ["describe_rows", "global_to_host_array", "host_to_global_device_array"]


class _NamedTuple(Protocol):
    def _asdict(self) -> dict[str, Any]: ...


_Name = TypeVar("_Name")
_Leaf = TypeVar("_Leaf", bound="npt.NDArray[Any] | jax.Array")
_Named = TypeVar("_Named", bound=_NamedTuple)
_Tree = TypeVar("_Tree")

BATCH_AXIS = "data"
"""Name of the mesh axis that splits rows by default."""

REMEDY = (
    "pass this sharding to the Dataloader, which then loads the rows of each process"
)


@overload
def host_to_global_device_array(
    local_batch: npt.NDArray[Any] | jax.Array, sharding: Sharding | None = None
) -> jax.Array: ...
@overload
def host_to_global_device_array(
    local_batch: dict[_Name, _Leaf], sharding: Sharding | None = None
) -> dict[_Name, jax.Array]: ...
@overload
def host_to_global_device_array(
    local_batch: _Named, sharding: Sharding | None = None
) -> _Named: ...
@overload
def host_to_global_device_array(
    local_batch: tuple[_Leaf, ...], sharding: Sharding | None = None
) -> tuple[jax.Array, ...]: ...
@overload
def host_to_global_device_array(
    local_batch: _Tree, sharding: Sharding | None = None
) -> _Tree: ...
def host_to_global_device_array(
    local_batch: Any, sharding: Sharding | None = None
) -> Any:
    """Return the global batch that consists of the rows of all processes.

    The rows of the processes follow each other in the order of the process indices,
    unless the mesh of the sharding has its devices in another order. A single process
    passes the whole batch.

    Args:
        local_batch: The rows of this process: a pytree of numpy arrays, such as a batch
            of a `Dataloader` without a sharding.
        sharding: Sharding of the global arrays. By default, the axis `"data"` of the
            current mesh splits rows, or the first axis if no axis is named `"data"`.
            The current mesh is set by `jax.set_mesh`, else by `with mesh:`.

    Returns:
        A pytree of global arrays, which never alias `local_batch`. For a type checker,
        an array, and the arrays of a dict or tuple, become `jax.Array`; any other tree
        keeps its type.

    Raises:
        ValueError: There is neither a sharding nor a mesh, the rows do not divide over
            the devices, or several processes hold the same rows under the sharding.
        TypeError: Devices do not support the dtype of a leaf.
    """
    target = sharding if sharding is not None else _batch_sharding(_current_mesh())
    leaves, tree = host_batch("batch", [local_batch], whole_leaf)
    return jax.tree.unflatten(tree, [_to_global(leaf, target) for leaf in leaves])


def global_to_host_array(global_batch: Any) -> Any:
    """Return the rows of a global batch that this process holds, as numpy arrays.

    The inverse of `host_to_global_device_array`. Blocks until the values are computed.
    Rows that several devices of this process hold are returned once.

    Args:
        global_batch: A pytree of global arrays.

    Returns:
        A pytree of numpy arrays, with rows in global order.

    Raises:
        ValueError: This process holds only parts of rows, because the sharding splits
            other axes over processes.
        TypeError: A leaf is not a `jax.Array`.
    """
    return jax.tree_util.tree_map_with_path(_to_host, global_batch)


def describe_rows(sharding: Sharding, shape: tuple[int, ...]) -> str:
    """Describe the rows that each process holds, one line per process.

    A line names columns only if the sharding splits columns.

    Example:
        `process 0: rows 0-3 of 8 on devices 0 1`
    """
    held: dict[int, dict[Box, list[int]]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        box = box_of(index or (), shape)
        boxes = held.setdefault(device.process_index, {})
        boxes.setdefault(box, []).append(device.id)
    lines: list[str] = []
    for process, boxes in sorted(held.items()):
        parts = [
            f"{_describe_box(box, shape)} on {_devices(sorted(ids))}"
            for box, ids in sorted(boxes.items())
        ]
        lines.append(f"process {process}: {'; '.join(parts)}")
    return "\n".join(lines)


def _describe_box(box: Box, shape: tuple[int, ...]) -> str:
    words: list[str] = []
    for axis, (start, stop) in enumerate(box):
        name = "rows" if axis == 0 else "columns" if axis == 1 else f"axis {axis}"
        if axis == 0 or (start, stop) != (0, shape[axis]):
            words.append(f"{name} {start}-{stop - 1} of {shape[axis]}")
    return ", ".join(words) if words else "the scalar"


def _devices(ids: list[int]) -> str:
    return f"device{'s' if len(ids) > 1 else ''} {' '.join(map(str, ids))}"


def _to_global(leaf: HostLeaf, sharding: Sharding) -> jax.Array:
    if jax.process_count() == 1:
        layout = make_layout(leaf.shape, sharding)
        return put_on_devices(layout, copy_parts(leaf, layout))
    _check_shares(leaf.shape, sharding, leaf.name)
    ((_, local),) = leaf.pieces
    fresh = local.astype(device_dtype(local.dtype, leaf.name))
    return jax.make_array_from_process_local_data(sharding, fresh)


def _to_host(path: tuple[Any, ...], array: Any) -> npt.NDArray[Any]:
    if not isinstance(array, jax.Array):
        raise TypeError(
            f"batch{jax.tree_util.keystr(path)} is of type {type(array).__name__}, not "
            "a jax.Array; pass a global batch, such as a batch of a Dataloader with a "
            "sharding"
        )
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    shape = array.shape
    held = {box_of(each.index, shape): each.data for each in array.addressable_shards}
    rows = sorted({row for box in held for row in range(*box[0])})
    offsets = {row: offset for offset, row in enumerate(rows)}
    local = np.empty((len(rows), *shape[1:]), array.dtype)
    num_values = 0
    for box, values in held.items():
        (start, stop), *others = box
        spans = tuple(slice(*span) for span in others)
        local[(slice(offsets[start], offsets[start] + stop - start), *spans)] = values
        num_values += values.size
    if num_values != local.size:
        raise ValueError(
            f"this process holds only parts of rows of an array of shape {shape} under "
            f"{array.sharding}; gather the array first, for example with "
            "jax.experimental.multihost_utils.process_allgather"
        )
    return local


def _check_shares(shape: tuple[int, ...], sharding: Sharding, name: str) -> None:
    """Raise a ValueError unless processes hold different rows in equal numbers."""
    if not shape:
        raise ValueError(f"{name} is a scalar, which has no rows; pass an array")
    by_rows = first_axes(sharding, 1)
    num_spans = len(by_rows.device_set)
    owners: dict[Span, set[int]] = {}
    for device, index in by_rows.devices_indices_map((num_spans,)).items():
        span = box_of(index or (), (num_spans,))[0]
        owners.setdefault(span, set()).add(device.process_index)
    shared = [processes for processes in owners.values() if len(processes) > 1]
    if shared:
        raise ValueError(
            f"{name}: processes {sorted(shared[0])} hold the same rows under "
            f"{sharding}; {REMEDY}"
        )
    num_owned = Counter(min(processes) for processes in owners.values())
    if len(set(num_owned.values())) > 1:
        raise ValueError(
            f"{name}: processes hold different numbers of rows under {sharding}, which "
            f"local batches of equal size do not fit; {REMEDY}"
        )


def _batch_sharding(mesh: Mesh | None) -> NamedSharding:
    if mesh is None:
        raise ValueError(
            "no sharding was given and no mesh is set; pass sharding=, or enter `with "
            "jax.set_mesh(mesh):`"
        )
    axis = BATCH_AXIS if BATCH_AXIS in mesh.axis_names else mesh.axis_names[0]
    return NamedSharding(mesh, PartitionSpec(axis))


def _current_mesh() -> Mesh | None:
    """Return the mesh of `jax.set_mesh`, else of `with mesh:`, else None."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        # JAX has no public function for the mesh of `with mesh:`.
        from jax._src.mesh import thread_resources

        mesh = thread_resources.env.physical_mesh
    return None if mesh.empty else mesh
