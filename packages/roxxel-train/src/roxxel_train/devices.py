"""Compute what each device of a mesh holds in each phase, without any device."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from roxxel_train._step.placement import BatchPlacement, accumulation_notes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum import ResolvedPhase


@dataclass(frozen=True)
class DeviceShares:
    """What a device works on at a time, in each phase.

    >>> shares = DeviceShares({"data": 2, "context": 4}, ((2, 1025), (1, 8192)), ())
    >>> print(shares)
    each of 8 devices (data 2, context 4) holds at a time:
    phase 0: 2 x 1025
    phase 1: 1 x 8192

    Attributes:
        axes: Devices along each axis of the mesh.
        held: Rows and columns, by phase.
        notes: A sentence for each batch that does not divide, or is split by columns.
    """

    axes: Mapping[str, int]
    held: tuple[tuple[int, int], ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for each phase, and one for each note."""
        sizes = ", ".join(f"{name} {size}" for name, size in self.axes.items())
        lines = [
            f"each of {prod(self.axes.values())} devices ({sizes}) holds at a time:"
        ]
        lines += [
            f"phase {index}: {rows} x {columns}"
            for index, (rows, columns) in enumerate(self.held)
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def device_shares(
    axes: Mapping[str, int],
    row_axes: Sequence[str],
    phases: Sequence[ResolvedPhase],
    grad_accum_steps: int = 1,
    *,
    strict: bool = False,
) -> DeviceShares:
    """Return what a device holds, for a model that splits columns over `context`.

    Args:
        axes: Devices along each axis of the mesh.
        row_axes: Axes that split rows, as in the trainer's `data_sharding`.
        phases: `Sampler.phases`.
        grad_accum_steps: As for the trainer.
        strict: As `strict_sharding` of the trainer.

    Raises:
        ValueError: A batch cannot be cut into equal parts; or it does not divide, and
            `strict` is True.
    """
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    spec = PartitionSpec(tuple(row_axes))
    placement = BatchPlacement(NamedSharding(mesh, spec), strict)
    idle = accumulation_notes(phases, grad_accum_steps, placement)
    shapes = [(phase.batch_size, phase.seq_len) for phase in phases]
    notes = placement.notes(shapes, grad_accum_steps)
    held = tuple(placement.held(shape, grad_accum_steps) for shape in shapes)
    return DeviceShares(dict(axes), held, (*notes, *idle))
