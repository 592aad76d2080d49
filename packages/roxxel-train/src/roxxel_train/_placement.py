"""The sharding of batches over the mesh, phase by phase."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from roxxel_train._units import in_bytes

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from roxxel_curriculum import ResolvedPhase, Sampler


def data_parallel_mesh() -> Mesh:
    """Return a mesh of all devices of all processes along one axis, `"data"`.

    `jax.make_mesh` orders the devices such that neighbours on the axis are neighbours
    in the network.
    """
    return jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))


@contextmanager
def instead_of_set_mesh(mesh: Mesh) -> Generator[None]:
    """Set `mesh` for a block if the program has set another one by `jax.set_mesh`.

    While a mesh is set, JAX refuses arrays on any other mesh, even on one that differs
    only in the types of its axes. The block sets no mesh if the program has set none.
    """
    if jax.sharding.get_mesh().empty:
        yield
    else:
        with jax.set_mesh(mesh):
            yield


def batch_sharding(
    mesh: Mesh | None, data_sharding: NamedSharding | None
) -> NamedSharding:
    """Return the sharding of a batch, on a mesh whose axes are of the Auto type.

    Explicit axes, the default of newer versions of `jax.make_mesh`, would require
    models that state the sharding of every operation; an embedding alone is an error.

    Args:
        mesh: Devices to use; None for the mesh of `data_sharding`, or else for a mesh
            of all devices along one axis.
        data_sharding: Sharding of a batch; None splits the rows over the first axis.

    Raises:
        ValueError: `data_sharding` is on another mesh than `mesh`.
        TypeError: An argument has another type, or the mesh is abstract.
    """
    _check_type("mesh", mesh, Mesh)
    _check_type("data_sharding", data_sharding, NamedSharding)
    if data_sharding is not None:
        if not isinstance(data_sharding.mesh, Mesh):
            raise TypeError(
                "data_sharding is on an abstract mesh; use a mesh of devices"
            )
        if mesh is not None and data_sharding.mesh != mesh:
            raise ValueError(
                f"data_sharding is on the mesh {dict(data_sharding.mesh.shape)} and "
                f"the argument mesh is {dict(mesh.shape)}; use one mesh for both"
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
            f"{expected.__name__}, or omit the argument"
        )


@dataclass(frozen=True)
class BatchPlacement:
    """The sharding of every batch, also of those that do not divide over the mesh.

    Attributes:
        sharding: The sharding of a batch that divides.
        strict: Whether a batch that does not divide is an error. Otherwise the batch is
            replicated over the axes of the mesh that do not divide its shape.
    """

    sharding: NamedSharding
    strict: bool = False

    def __call__(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding for a batch of this shape.

        Raises:
            ValueError: The batch does not divide and `strict` is set, or the spec has
                more dimensions than the batch.
        """
        spec = tuple(self.sharding.spec)
        if len(spec) > len(shape):
            raise ValueError(
                f"data_sharding has the spec {spec}, which names {len(spec)} "
                f"dimensions, but a batch has {len(shape)}: {shape}; "
                "give a spec of (rows, columns)"
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
        """Return one sentence for each distinct shape that does not divide."""
        return [
            f"{self.describe(shape)}; the batch is replicated over that axis"
            for shape in dict.fromkeys(shapes)
            if self(shape) != self.sharding
        ]

    def describe(self, shape: tuple[int, ...]) -> str:
        """Return which dimensions of `shape` do not divide, and sizes that would."""
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

    def row_ways(self, shape: tuple[int, ...]) -> int:
        """Return the number of pieces into which the rows of a batch are split."""
        spec = self(shape).spec
        return self._ways(spec[0] if len(spec) else None)

    def _ways(self, axes: str | tuple[str, ...] | None) -> int:
        """Return the number of pieces into which mesh axes split a dimension."""
        if axes is None:
            return 1
        names = (axes,) if isinstance(axes, str) else axes
        return math.prod(self.sharding.mesh.shape[name] for name in names)


def batch_shapes(sampler: Sampler, placement: BatchPlacement) -> list[Any]:
    """Return shape, dtype and sharding of the batches of each phase.

    Returns:
        One `jax.ShapeDtypeStruct` per phase, or a dict of them by field if the sampler
        has other fields than the tokens.

    Raises:
        ValueError: A batch does not divide and the placement is strict, or a process
            does not have the memory for its share of a batch.
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


def accumulation_notes(
    phases: Iterable[ResolvedPhase], grad_accum_steps: int, placement: BatchPlacement
) -> list[str]:
    """Return one sentence for each phase whose accumulated parts leave devices idle.

    A part with fewer rows than devices costs each device as much as a part with one row
    per device, and saves no memory. A batch that is replicated over all devices may be
    cut as its rows allow.

    Raises:
        ValueError: A batch does not divide by the number of parts, or the placement is
            strict and the parts of a batch leave devices idle.
    """
    ways = [
        (phase, placement.row_ways((phase.batch_size, phase.seq_len)))
        for phase in phases
    ]
    most = math.gcd(*(phase.batch_size // num_devices for phase, num_devices in ways))
    fitting = [str(parts) for parts in range(1, most + 1) if most % parts == 0]
    remedy = f"use grad_accum_steps={' or '.join(fitting)}, or another batch_size"
    notes: list[str] = []
    for phase, num_devices in ways:
        rows, left_over = divmod(phase.batch_size, grad_accum_steps)
        if left_over:
            raise ValueError(
                f"phase {phase.index} has batch_size={phase.batch_size}, which does "
                f"not divide by grad_accum_steps={grad_accum_steps}; {remedy}"
            )
        if rows % num_devices:
            idle = num_devices - rows / -(-rows // num_devices)
            notes.append(
                f"grad_accum_steps={grad_accum_steps} cuts batch_size="
                f"{phase.batch_size} of phase {phase.index} into parts of {rows}, so "
                f"{idle:.3g} of {num_devices} devices idle; {remedy}"
            )
    if notes and placement.strict:
        raise ValueError(notes[0])
    return notes


def _check_memory(shape: tuple[int, int], value_bytes: int) -> None:
    """Check that this machine has the memory for its share of one batch.

    Raises:
        ValueError: The share of a process is larger than the memory.
    """
    share = math.prod(shape) * value_bytes // jax.process_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if share > memory:
        raise ValueError(
            f"a batch of {shape[0]} x {shape[1]} needs {in_bytes(share)} or more in "
            f"each process, and this machine has {in_bytes(memory)} of memory; lower "
            "batch_size or seq_len"
        )
