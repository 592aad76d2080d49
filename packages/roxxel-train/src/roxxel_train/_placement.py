"""Where the rows of a batch lie on the mesh, phase by phase."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from roxxel_train._units import in_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from roxxel_curriculum import Sampler


def data_parallel_mesh() -> Mesh:
    """Return all devices of all processes along one axis, `"data"`."""
    return Mesh(np.asarray(jax.devices()), ("data",))


@contextmanager
def instead_of_set_mesh(mesh: Mesh) -> Generator[None]:
    """Let `mesh` stand in for one that the program has set by `jax.set_mesh`.

    JAX refuses arrays of any other mesh than the one set, and counts the same devices
    with axes of another type as another. Where none is set, none is.
    """
    if jax.sharding.get_mesh().empty:
        yield
    else:
        with jax.set_mesh(mesh):
            yield


def batch_sharding(
    mesh: Mesh | None, data_sharding: NamedSharding | None
) -> NamedSharding:
    """Return how a batch is laid out, on the mesh that the model lives on too.

    The axes of the mesh are made automatic, as `jax.sharding.Mesh` has them: models
    are written without regard to how they are sharded, and in the explicit mode that
    newer versions of `jax.make_mesh` choose, an embedding alone is an error.

    Args:
        mesh: Devices to use; None for those of `data_sharding`, or all in one row.
        data_sharding: Sharding of a batch; None for rows over the mesh's first axis.

    Raises:
        ValueError: Both are given and lie on different meshes.
        TypeError: One is of another type, or `data_sharding` lies on an abstract mesh.
    """
    _check_type("mesh", mesh, Mesh)
    _check_type("data_sharding", data_sharding, NamedSharding)
    if data_sharding is not None:
        if not isinstance(data_sharding.mesh, Mesh):
            raise TypeError(
                "data_sharding needs a mesh of devices, not an abstract one"
            )
        if mesh is not None and data_sharding.mesh != mesh:
            raise ValueError(
                f"data_sharding lies on a mesh of {dict(data_sharding.mesh.shape)}, "
                f"mesh is one of {dict(mesh.shape)}; give both on the same mesh"
            )
        mesh = data_sharding.mesh
    mesh = mesh or data_parallel_mesh()
    automatic = Mesh(mesh.devices, mesh.axis_names)
    spec = (
        PartitionSpec(mesh.axis_names[0])
        if data_sharding is None
        else data_sharding.spec
    )
    return NamedSharding(automatic, spec)


def _check_type(name: str, value: Any, expected: type) -> None:
    if value is not None and not isinstance(value, expected):
        raise TypeError(
            f"{name} is a {type(value).__name__}; give a jax.sharding."
            f"{expected.__name__}, or leave it out"
        )


@dataclass(frozen=True)
class BatchPlacement:
    """The sharding of batches, and what becomes of one that does not divide.

    Attributes:
        sharding: As the user wants it for every batch.
        strict: Whether a batch that does not divide is an error; otherwise it is
            replicated over the mesh axes that do not divide.
    """

    sharding: NamedSharding
    strict: bool = False

    def __call__(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding for a batch of this shape.

        Raises:
            ValueError: The batch does not divide and `strict` is set, or the sharding
                names more dimensions than the batch has.
        """
        spec = tuple(self.sharding.spec)
        if len(spec) > len(shape):
            raise ValueError(
                f"data_sharding has the spec {spec}, which names {len(spec)} "
                f"dimensions, but a batch has {len(shape)}: {shape}; "
                "give a spec for (batch, sequence)"
            )
        fitting = [
            None if size % self._ways(axes) else axes
            for size, axes in zip(shape, spec, strict=False)
        ]
        if fitting == list(spec):
            return self.sharding
        if self.strict:
            raise ValueError(
                f"{self.describe(shape)}; strict_sharding=True allows no replication"
            )
        return NamedSharding(self.sharding.mesh, PartitionSpec(*fitting))

    def notes(self, shapes: Iterable[tuple[int, ...]]) -> list[str]:
        """Return one sentence for each shape that does not divide."""
        distinct = dict.fromkeys(shapes)
        return [
            f"{self.describe(shape)}; it is replicated over that axis"
            for shape in distinct
            if self(shape) != self.sharding
        ]

    def describe(self, shape: tuple[int, ...]) -> str:
        """Say which dimensions of `shape` do not divide, and what would."""
        names = ("batch_size", "seq_len")
        parts = [
            f"{names[i]}={size} does not divide over the {ways} devices of mesh axis "
            f"{axes!r} (a multiple of {ways} would use them all)"
            for i, (size, axes) in enumerate(
                zip(shape, self.sharding.spec, strict=False)
            )
            if size % (ways := self._ways(axes))
        ]
        return "; ".join(parts)

    def _ways(self, axes: str | tuple[str, ...] | None) -> int:
        """Return into how many pieces these mesh axes cut a dimension."""
        if axes is None:
            return 1
        names = (axes,) if isinstance(axes, str) else axes
        return math.prod(self.sharding.mesh.shape[name] for name in names)


def batch_shapes(sampler: Sampler, placement: BatchPlacement) -> list[Any]:
    """Return shape, dtype and sharding of the batches of each of the sampler's phases.

    Returns:
        One `jax.ShapeDtypeStruct` a phase, or a dict of them by field where the sampler
        gives more than tokens.

    Raises:
        ValueError: One does not divide, and the placement is strict; or a process has
            not the memory for its part of one.
    """
    tokens = jax.dtypes.canonicalize_dtype(sampler.dtype)
    shapes: list[Any] = []
    for phase in sampler.phases:
        shape = phase.batch_size, phase.seq_len
        _check_memory(shape, tokens.itemsize * len(sampler.fields))
        batch = {
            field: jax.ShapeDtypeStruct(
                shape,
                tokens if field == "tokens" else np.dtype(np.int32),
                sharding=placement(shape),
            )
            for field in sampler.fields
        }
        shapes.append(batch["tokens"] if sampler.fields == ("tokens",) else batch)
    return shapes


def _check_memory(shape: tuple[int, int], value_bytes: int) -> None:
    """Check that one batch fits the memory of the machine, where it is assembled.

    Raises:
        ValueError: The part of a process does not.
    """
    part = math.prod(shape) * value_bytes // jax.process_count()
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if part > there:
        raise ValueError(
            f"of a batch of {shape[0]} x {shape[1]} each process holds "
            f"{in_bytes(part)} or more, and this machine has {in_bytes(there)} of "
            "memory; lower batch_size or seq_len"
        )
