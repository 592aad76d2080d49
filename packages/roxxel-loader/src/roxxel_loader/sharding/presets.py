"""Presets of meshes: data-parallel, fully sharded, hybrid, custom.

Each preset is a `ShardingConfig`: the names and sizes of the mesh's axes, and the axes
that split a batch. No device is used before `create_device_mesh()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


REPLICA_AXIS = "replica"
"""The mesh axis between groups; a model is never split over it."""


@dataclass(frozen=True)
class ShardingConfig:
    """The axes of a mesh, and the axes that split a batch.

    Attributes:
        axis_names: Names of the mesh's axes.
        mesh_shape: Devices along each axis; at most one size is -1, for all remaining
            devices.
        batch_axis_names: The axes that split the rows of a batch, the slowest first.
        num_groups: Groups of devices along each axis, joined by a slower network
            (slices of a pod, or processes); None if all connections are alike.

    Raises:
        ValueError: Names repeat or are unknown, a size is invalid, or axes, sizes and
            groups differ in number.
    """

    axis_names: tuple[str, ...]
    mesh_shape: tuple[int, ...]
    batch_axis_names: tuple[str, ...]
    num_groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.mesh_shape) != len(self.axis_names):
            raise ValueError(
                f"mesh shape {self.mesh_shape} and axis names {self.axis_names} differ "
                "in number; give one size per name"
            )
        if len(set(self.axis_names)) != len(self.axis_names):
            raise ValueError(f"axis names {self.axis_names} repeat; give each once")
        unknown = [
            name for name in self.batch_axis_names if name not in self.axis_names
        ]
        if unknown:
            raise ValueError(
                f"batch axis {unknown[0]!r} is not among the mesh's axes "
                f"{self.axis_names}; name one of them"
            )
        if self.mesh_shape.count(-1) > 1 or any(
            size < 1 and size != -1 for size in self.mesh_shape
        ):
            raise ValueError(
                f"mesh shape {self.mesh_shape} is not possible; give positive sizes "
                "and -1 at most once, for the devices that are left"
            )
        groups = self.num_groups
        if groups is not None and (
            len(groups) != len(self.axis_names) or min(groups) < 1
        ):
            raise ValueError(
                f"groups {groups} do not fit axes {self.axis_names}; give one positive "
                "number of groups per axis, 1 where an axis stays inside one"
            )

    @property
    def model_axis_names(self) -> tuple[str, ...]:
        """The axes over which a fully sharded model may be split.

        These are the batch axes inside a group. Each group holds the whole model, so
        only gradients cross the slower network.
        """
        groups = self.num_groups or (1,) * len(self.axis_names)
        between_groups = {
            name
            for name, num in zip(self.axis_names, groups, strict=True)
            if num > 1 or name == REPLICA_AXIS
        }
        return tuple(
            name for name in self.batch_axis_names if name not in between_groups
        )

    def create_device_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Return the mesh over `devices` (default: all), with axes of type Auto.

        Raises:
            ValueError: The devices do not fill the shape.
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
                "choose sizes that are multiples of the groups"
            )
        slices = {getattr(device, "slice_index", None) for device in chosen}
        grid = mesh_utils.create_hybrid_device_mesh(
            tuple(size for size, _ in divided),
            self.num_groups,
            chosen,
            process_is_granule=None in slices or len(slices) != prod(self.num_groups),
        )
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
                "change the shape or pass the devices to use"
            )
        return shape


def make_fsdp_sharding_config(
    axis_names: Sequence[str] = ("data", "model"),
    batch_axis_name: str = "data",
    mesh_shape: Sequence[int] | None = None,
) -> ShardingConfig:
    """Return the mesh of fully sharded data parallelism.

    The batch axis splits batches, parameters and optimizer state. The other axes serve
    tensor parallelism.

    Args:
        axis_names: Names of the mesh's axes.
        batch_axis_name: The axis that splits batches.
        mesh_shape: Devices along each axis; by default all along the batch axis.
    """
    names = tuple(axis_names)
    shape = mesh_shape or [-1 if name == batch_axis_name else 1 for name in names]
    return ShardingConfig(names, tuple(shape), (batch_axis_name,))


def make_data_parallel_sharding_config(axis_name: str = "data") -> ShardingConfig:
    """Return a mesh of one axis that splits rows over all devices."""
    return ShardingConfig((axis_name,), (-1,), (axis_name,))


def make_hybrid_sharding_config(
    num_groups: int,
    axis_names: Sequence[str] = ("replica", "data", "model"),
    batch_axis_names: Sequence[str] = ("replica", "data"),
    model_parallelism: int = 1,
) -> ShardingConfig:
    """Return the mesh of groups that each hold a whole model, sharded inside the group.

    Args:
        num_groups: Groups joined by the slower network: slices of a pod, or processes.
        axis_names: Names of the axes between groups, inside a group and inside a layer.
        batch_axis_names: The axes that split batches.
        model_parallelism: Devices that share the work of one layer.
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
    """Return a mesh of `mesh_shape`, where -1 means all remaining devices."""
    batch = (
        (batch_axis_names,) if isinstance(batch_axis_names, str) else batch_axis_names
    )
    return ShardingConfig(tuple(axis_names), tuple(mesh_shape), tuple(batch))
