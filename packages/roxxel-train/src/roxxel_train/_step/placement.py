"""The sharding of batches over the mesh, phase by phase."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from roxxel_loader.sharding.presets import CONTEXT_AXIS, row_axes

from roxxel_train._step.fed import Fed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from roxxel_curriculum import ResolvedPhase, Sampler

Axes: TypeAlias = "str | tuple[str, ...] | None"
"""The axes of a mesh that split one dimension of a batch."""

_MOST_PARTS = 1 << 16
_SHOWN_PARTS = 4


def instead_of_set_mesh(mesh: Mesh) -> AbstractContextManager[object]:
    """Set `mesh` for a block if the program has set a mesh by `jax.set_mesh`.

    While a mesh is set, JAX refuses arrays on any other mesh, even on a mesh that
    differs only in the types of its axes.
    """
    return nullcontext() if jax.sharding.get_mesh().empty else jax.set_mesh(mesh)


def batch_sharding(
    mesh: Mesh | None, data_sharding: NamedSharding | None
) -> NamedSharding:
    """Return the sharding of a batch, on a mesh whose axes are of the Auto type.

    Over Explicit axes, the default of newer versions of `jax.make_mesh`, a model must
    state the sharding of operations such as an embedding lookup. Without a mesh, all
    devices are along one axis. Without `data_sharding`, the first axis of the mesh and
    the axis `context` split the rows.
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
    if mesh is None:
        # `jax.make_mesh` puts devices that are close in the network next to each other.
        mesh = jax.make_mesh((jax.device_count(),), ("data",), (AxisType.Auto,))
    rows = (mesh.axis_names[0],)
    if CONTEXT_AXIS in mesh.axis_names[1:]:
        rows = (*rows, CONTEXT_AXIS)
    spec = PartitionSpec(rows) if data_sharding is None else data_sharding.spec
    if CONTEXT_AXIS in mesh.axis_names and CONTEXT_AXIS not in _row_axes(spec):
        raise ValueError(
            f"the mesh has an axis {CONTEXT_AXIS!r}, over which data_sharding does not "
            "split the rows of short phases; end the first entry of its spec with "
            f"{CONTEXT_AXIS!r}, such as PartitionSpec(({rows[0]!r}, {CONTEXT_AXIS!r}))"
        )
    return NamedSharding(Mesh(mesh.devices, mesh.axis_names), spec)


def _row_axes(spec: PartitionSpec) -> tuple[str, ...]:
    axes: Axes = next(iter(spec), None)
    return (axes,) if isinstance(axes, str) else axes or ()


def _check_type(name: str, value: Any, expected: type) -> None:
    if value is not None and not isinstance(value, expected):
        raise TypeError(
            f"{name} is a {type(value).__name__}; give a jax.sharding."
            f"{expected.__name__}, or omit the argument"
        )


@dataclass(frozen=True)
class BatchPlacement:
    """The sharding of every batch, even if the batch does not divide over the mesh.

    A batch is replicated over the axes of the mesh that do not divide its shape. If
    `strict` is True, such a batch is an error. If only the axis `context` does not
    divide the rows, all its devices get the same rows, for a model that splits their
    columns. This is not an error.
    """

    sharding: NamedSharding
    strict: bool = False

    def __call__(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding for a batch of this shape, or raise ValueError.

        An array of one axis has one value for each row of a batch.
        """
        spec = tuple(self.sharding.spec)
        if len(shape) == 1:
            spec = spec[:1]
        if len(spec) > len(shape):
            raise ValueError(
                f"data_sharding has the spec {spec}, which names {len(spec)} "
                f"dimensions, but a batch has {len(shape)}: {shape}; "
                "give a spec of (rows, columns)"
            )
        of_rows = self._of_rows(shape[0])
        fitting = [
            None if size % self._ways(axes) else axes
            for size, axes in zip(shape, [of_rows, *spec[1:]], strict=False)
        ]
        if fitting == list(self.sharding.spec):
            return self.sharding
        if self.strict and fitting != [of_rows, *spec[1:]][: len(fitting)]:
            raise ValueError(
                f"{self.describe(shape)}; strict_sharding=True allows no replication"
            )
        return NamedSharding(self.sharding.mesh, PartitionSpec(*fitting))

    def splits_columns(self, shape: tuple[int, ...]) -> bool:
        """Return whether the axis `context` is left for the columns of a batch."""
        return self._of_rows(shape[0]) != next(iter(self.sharding.spec), None)

    def _of_rows(self, num_rows: int) -> Axes:
        """Return the axes that split rows, if they divide."""
        axes: Axes = next(iter(self.sharding.spec), None)
        names = _row_axes(self.sharding.spec)
        if CONTEXT_AXIS not in names:  # no other axis is left for columns
            return axes
        sizes = {name: self.sharding.mesh.shape[name] for name in names}
        left = row_axes(sizes, num_rows)
        if left == names:
            return axes
        return left if len(left) > 1 else next(iter(left), None)

    def held(
        self, shape: tuple[int, ...], parts: int = 1, *, is_whole: bool = False
    ) -> tuple[int, int]:
        """Return the rows and columns that a device works on at a time.

        `parts` are those of an accumulated batch. `is_whole` says that the model does
        not split columns, so all devices along the axis `context` do the same work.
        """
        rows, columns = shape[0] // parts, shape[1]
        ways = self._ways(self._of_rows(rows))
        held = rows if shape[0] % ways else -(-rows // ways)
        if self.splits_columns((rows,)) and not is_whole:
            # The last token of a row is only a target.
            return held, -(-(columns - 1) // self.sharding.mesh.shape[CONTEXT_AXIS])
        along = self._ways(next(iter(self.sharding.spec[1:]), None))
        return held, columns if columns % along else columns // along

    def notes(
        self,
        shapes: Iterable[tuple[int, ...]],
        parts: int = 1,
        whole: Collection[tuple[int, ...]] = (),
    ) -> list[str]:
        """Return a sentence for each distinct shape that does not divide.

        `parts` are those of an accumulated batch. For the shapes in `whole`, the model
        does not split columns.
        """
        notes: list[str] = []
        for shape in dict.fromkeys(shapes):
            if self.splits_columns((shape[0] // parts,)):
                what = f"batches of {shape[0]} x {shape[1]}"
                what += f" in {parts} parts" if parts > 1 else ""
                ways = self.sharding.mesh.shape[CONTEXT_AXIS]
                notes.append(
                    f"{what} have too few rows for all devices: the {ways} devices of "
                    f"the axis {CONTEXT_AXIS!r} get the same rows, and the model "
                    + (
                        "does not split their columns, so all do the same work; let "
                        "it constrain its hidden states to this axis, or use a "
                        f"multiple of {self.num_ways * parts} rows"
                        if shape in whole
                        else "splits their columns"
                    )
                )
            if self(shape).spec != self._wanted(shape):
                notes.append(
                    f"{self.describe(shape)}; the batch is replicated over that axis"
                )
        return notes

    def _wanted(self, shape: tuple[int, ...]) -> PartitionSpec:
        """Return the spec that would divide the batch."""
        if not self.splits_columns(shape):
            return self.sharding.spec
        return PartitionSpec(self._of_rows(shape[0]), *self.sharding.spec[1:])

    @property
    def num_ways(self) -> int:
        """Devices over which the rows of a batch are split if they divide."""
        return self._ways(next(iter(self.sharding.spec), None))

    def describe(self, shape: tuple[int, ...]) -> str:
        """Describe which dimensions of `shape` do not divide, and which sizes would."""
        names = ("batch_size", "seq_len")
        split_over = (self._of_rows(shape[0]), *self.sharding.spec[1:])
        parts = [
            f"{names[i]}={size} does not divide over the {ways} devices of mesh axis "
            f"{axes!r} (a multiple of {ways} would use them all)"
            for i, (size, axes) in enumerate(zip(shape, split_over, strict=False))
            if size % (ways := self._ways(axes))
        ]
        return "; ".join(parts)

    def least_ways(self, num_rows: int) -> int:
        """Return over how many devices each accumulated part of a batch must divide.

        1 for a batch whose rows are replicated. The axis `context` does not count, as
        it may split the columns of a part.
        """
        names = _row_axes(self.sharding.spec)
        ways = self._ways(tuple(name for name in names if name != CONTEXT_AXIS))
        return 1 if num_rows % ways else ways

    def _ways(self, axes: Axes) -> int:
        """Return the number of pieces into which mesh axes split a dimension."""
        if axes is None:
            return 1
        names = (axes,) if isinstance(axes, str) else axes
        return math.prod(self.sharding.mesh.shape[name] for name in names)


def batch_shapes(sampler: Sampler, placement: BatchPlacement) -> list[Any]:
    """Return shape, dtype and sharding of the batches of each phase.

    Each item is a `jax.ShapeDtypeStruct`, or a dict of these objects by field if the
    sampler has more fields than the tokens.
    """
    tokens = jax.dtypes.canonicalize_dtype(sampler.dtype)
    shapes: list[Any] = []
    for phase in sampler.phases:
        shape = phase.batch_size, phase.seq_len
        sharding = placement(shape)
        batch = {
            field: jax.ShapeDtypeStruct(
                shape,
                tokens if field == "tokens" else np.dtype(np.int32),
                sharding=sharding,
            )
            for field in sampler.fields
        }
        shapes.append(batch["tokens"] if sampler.fields == ("tokens",) else batch)
    return shapes


def fed_shapes(
    sampler: Sampler, placement: BatchPlacement, grad_accum_steps: int
) -> list[Fed]:
    """Return shape, dtype and sharding of the input of an update, for each phase."""
    fed: list[Fed] = []
    batches = batch_shapes(sampler, placement)
    for phase, batch in zip(sampler.phases, batches, strict=True):
        shape = (phase.batch_size,)
        of_rows = jax.ShapeDtypeStruct(shape, np.int32, sharding=placement(shape))
        fed.append(Fed(batch, of_rows, None if grad_accum_steps == 1 else of_rows))
    return fed


def accumulation_notes(
    phases: Sequence[ResolvedPhase], grad_accum_steps: int, placement: BatchPlacement
) -> list[str]:
    """Return one sentence for each phase whose accumulated parts leave devices idle.

    A part with fewer rows than devices takes as much time and memory as a part with one
    row per device. If a batch is replicated over all devices, no part leaves a device
    idle, however few rows it has. If the placement is strict, idle devices are an
    error.
    """
    most = most_parts(phases, placement)
    notes: list[str] = []
    for phase in phases:
        rows, left_over = divmod(phase.batch_size, grad_accum_steps)
        if left_over:
            raise ValueError(
                f"phase {phase.index} has batch_size={phase.batch_size}, which does "
                f"not divide by grad_accum_steps={grad_accum_steps}; "
                f"{_accumulation_remedy(most, grad_accum_steps)}"
            )
        ways = placement.least_ways(phase.batch_size)
        if rows % ways:
            num_devices = placement.num_ways
            # The device with most rows sets the time; the others idle for a part of it.
            most_rows = -(-rows // ways)
            busy = rows / (most_rows * ways) * num_devices
            notes.append(
                f"grad_accum_steps={grad_accum_steps} cuts batch_size="
                f"{phase.batch_size} of phase {phase.index} into parts of {rows}, so "
                f"{num_devices - busy:.3g} of {num_devices} devices idle; "
                f"{_accumulation_remedy(most, grad_accum_steps)}"
            )
    if notes and placement.strict:
        raise ValueError(notes[0])
    return notes


def most_parts(phases: Iterable[ResolvedPhase], placement: BatchPlacement) -> int:
    """Return the number of parts whose divisors leave no device idle in any phase."""
    sizes = [phase.batch_size for phase in phases]
    return math.gcd(*(size // placement.least_ways(size) for size in sizes))


def _accumulation_remedy(most: int, grad_accum_steps: int) -> str:
    """Name the divisors of `most` that are nearest to `grad_accum_steps`."""
    # The bound keeps the search short for a huge batch. The divisors that the search
    # then misses are far above any useful number of parts.
    tried = range(1, min(math.isqrt(most), _MOST_PARTS) + 1)
    small = [parts for parts in tried if most % parts == 0]
    divisors = {*small, *(most // parts for parts in small)}
    nearest = sorted(divisors, key=lambda parts: (abs(parts - grad_accum_steps), parts))
    shown = " or ".join(map(str, sorted(nearest[:_SHOWN_PARTS])))
    return f"use grad_accum_steps={shown}, or another batch_size"
