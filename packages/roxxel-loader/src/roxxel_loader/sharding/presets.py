"""Presets of meshes: data-parallel, fully sharded, hybrid, custom.

Each preset is a `ShardingConfig`: the names and sizes of the mesh's axes, and the axes
that split a batch. Only `create_device_mesh()` initializes JAX's devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from roxxel_store.screen import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ShardingConfig",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
]

CONTEXT_AXIS = "context"
"""Name of the mesh axis that splits the columns of a batch with few rows."""


def row_axes(sizes: Mapping[str, int], num_rows: int) -> tuple[str, ...]:
    """Return the axes that split the rows of a batch, or of a part of it.

    The axis `context` splits them too, unless the rows do not divide over all axes.
    Then this axis splits columns, even if the rows do not divide over the other axes.

    Args:
        sizes: Devices along each axis that may split rows, by name.
        num_rows: Rows of the batch.
    """
    if num_rows % prod(sizes.values()) == 0:
        return tuple(sizes)
    return tuple(name for name in sizes if name != CONTEXT_AXIS)


def column_ways(sizes: Mapping[str, int], num_rows: int, num_columns: int) -> int:
    """Return over how many devices columns are split; 1 if only rows are split.

    Args:
        sizes: As for `row_axes`.
        num_rows: As for `row_axes`.
        num_columns: Tokens of a row that have a next token, so `seq_len - 1`.

    Raises:
        ValueError: The columns do not divide over the axis `context`.
    """
    split = row_axes(sizes, num_rows)
    ways = prod(sizes.values()) // prod(sizes[name] for name in split)
    if num_columns % ways:
        least = num_columns // ways * ways + 1
        raise ValueError(
            f"a batch of {counted(num_rows, 'row')} does not divide over all devices, "
            f"nor do its {num_columns} columns over the {ways} of the axis "
            f"{CONTEXT_AXIS!r}; use a seq_len of {least} or {least + ways}"
        )
    return ways


@dataclass(frozen=True)
class ShardingConfig:
    """The axes of a mesh, and the axes that split a batch.

    Attributes:
        axis_names: Names of the mesh's axes.
        mesh_shape: Number of devices along each axis. At most one size is -1, which
            means all remaining devices.
        batch_axis_names: The axes that split the rows of a batch, outermost first.
        num_groups: Number of groups along each axis, or None without groups. A group is
            a set of devices with fast connections; a slower network connects groups. If
            there are as many TPU slices as groups, each slice is a group. Otherwise
            each group has equally many consecutive processes.

    Raises:
        ValueError: A name repeats or is unknown, a size is invalid, or the numbers of
            axes, sizes and groups differ.

    Example:
        >>> config = make_data_parallel_sharding_config()
        >>> mesh = config.create_device_mesh()
        >>> mesh.axis_names, config.batch_sharding(mesh).spec[0]
        (('data',), 'data')
    """

    axis_names: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    batch_axis_names: tuple[str, ...]
    num_groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.mesh_shape) != len(self.axis_names):
            raise ValueError(
                f"mesh shape {self.mesh_shape} and axis names {self.axis_names} differ "
                "in length; give one size per name"
            )
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(
                f"axis names {self.axis_names} contain a name twice; give unique names"
            )
        unknown = [
            name for name in self.batch_axis_names if name not in self.axis_names
        ]
        if unknown:
            raise ValueError(
                f"batch axis {unknown[0]!r} is not an axis of the mesh; use axes of "
                f"{self.axis_names}"
            )
        if self.mesh_shape.count(-1) > 1 or any(
            size < 1 and size != -1 for size in self.mesh_shape
        ):
            raise ValueError(
                f"mesh shape {self.mesh_shape} is invalid; give positive sizes, and -1 "
                "at most once, for all remaining devices"
            )
        groups = self.num_groups
        if groups is not None and (
            len(groups) != len(self.axis_names) or min(groups) < 1
        ):
            raise ValueError(
                f"groups {groups} do not fit axes {self.axis_names}; give one positive "
                "number per axis, 1 for an axis inside a group"
            )

    def create_device_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Return a mesh of `devices` (default: all devices), with axes of type Auto.

        Raises:
            ValueError: The devices do not fill the shape, or the processes do not
                divide into groups.
        """
        chosen = list(jax.devices() if devices is None else devices)
        shape = self._resolve(len(chosen))
        types = (AxisType.Auto,) * len(shape)
        if self.num_groups is None:
            return jax.make_mesh(shape, self.axis_names, types, devices=chosen)
        divided = [divmod(*pair) for pair in zip(shape, self.num_groups, strict=True)]
        if any(left_over for _, left_over in divided):
            raise ValueError(
                f"{self.num_groups} groups do not divide a mesh of shape {shape}; "
                "make each size a multiple of the axis's number of groups"
            )
        inner = tuple(size for size, _ in divided)
        grids = np.empty(prod(self.num_groups), dtype=object)
        for index, group in enumerate(_groups(chosen, len(grids))):
            grids[index] = mesh_utils.create_device_mesh(inner, group)
        grid = np.block(grids.reshape(self.num_groups).tolist())
        return Mesh(np.asarray(grid), self.axis_names, axis_types=types)

    def batch_sharding(self, mesh: Mesh) -> NamedSharding:
        """Return the sharding that splits rows over the batch axes of `mesh`."""
        return NamedSharding(mesh, PartitionSpec(self.batch_axis_names))

    def _resolve(self, num_devices: int) -> tuple[int, ...]:
        fixed = prod(size for size in self.mesh_shape if size != -1)
        shape = tuple(
            num_devices // fixed if size == -1 else size for size in self.mesh_shape
        )
        if prod(shape) != num_devices:
            raise ValueError(
                f"{num_devices} devices do not fill a mesh of shape {self.mesh_shape}; "
                "change the shape, or in Python pass devices="
            )
        return shape


def _groups(devices: Sequence[Any], num_groups: int) -> list[list[Any]]:
    """Group devices by TPU slice if there are `num_groups` slices, else by process."""
    units = sorted({getattr(device, "slice_index", None) or 0 for device in devices})
    unit_of = attrgetter("slice_index")
    if len(units) != num_groups or num_groups == 1:
        unit_of = attrgetter("process_index")
        units = sorted({device.process_index for device in devices})
    each, left_over = divmod(len(units), num_groups)
    if left_over:
        raise ValueError(
            f"{num_groups} groups need a multiple of {num_groups} processes, but the "
            f"devices belong to {len(units)}; start more processes, or use a preset "
            "without groups such as make_fsdp_sharding_config()"
        )
    found: list[list[Any]] = [[] for _ in range(num_groups)]
    for device in devices:
        found[units.index(unit_of(device)) // each].append(device)
    sizes = [len(group) for group in found]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"the groups would have {sizes} devices; pass the same number of devices "
            "of every process"
        )
    return found


def make_fsdp_sharding_config(
    axis_names: Sequence[str] = ("data", "model"),
    batch_axis_name: str = "data",
    mesh_shape: Sequence[int] | None = None,
) -> ShardingConfig:
    """Return a config for fully sharded data parallelism.

    The batch axis splits batches, parameters and optimizer state. Other axes split
    single layers (tensor parallelism).

    Args:
        axis_names: Names of the mesh's axes.
        batch_axis_name: The axis that splits batches.
        mesh_shape: Number of devices along each axis; by default, all devices are along
            the batch axis.
    """
    names = tuple(axis_names)
    shape = mesh_shape or [-1 if name == batch_axis_name else 1 for name in names]
    return ShardingConfig(names, tuple(shape), (batch_axis_name,))


def make_data_parallel_sharding_config(axis_name: str = "data") -> ShardingConfig:
    """Return a config with one axis, which splits rows over all devices."""
    return ShardingConfig((axis_name,), (-1,), (axis_name,))


def make_hybrid_sharding_config(
    num_groups: int,
    axis_names: Sequence[str] = ("replica", "data", "model"),
    batch_axis_names: Sequence[str] = ("replica", "data"),
    model_parallelism: int = 1,
) -> ShardingConfig:
    """Return a config of groups; each group holds a whole model, sharded inside it.

    Args:
        num_groups: Number of groups, which a slower network connects. If there are
            `num_groups` TPU slices, each slice is a group. Otherwise each group has
            equally many consecutive processes, so `num_groups` must divide the number
            of processes.
        axis_names: Names of three axes. The first axis runs over the groups, the second
            over the devices of a group that hold different rows, and the third over the
            devices that split each layer (tensor parallelism).
        batch_axis_names: The axes that split batches.
        model_parallelism: Number of devices that split each layer.
    """
    return ShardingConfig(
        tuple(axis_names),
        (num_groups, -1, model_parallelism),
        tuple(batch_axis_names),
        (num_groups, 1, 1),
    )


def make_custom_sharding_config(
    mesh_shape: Sequence[int],
    axis_names: Sequence[str],
    batch_axis_names: str | Sequence[str],
) -> ShardingConfig:
    """Return a config with the given axes; the size -1 means all remaining devices."""
    batch = (
        (batch_axis_names,) if isinstance(batch_axis_names, str) else batch_axis_names
    )
    return ShardingConfig(tuple(axis_names), tuple(mesh_shape), tuple(batch))
