"""How to make a batch fit a device's memory: in more parts.

The proposals are estimates: they assume that memory besides model and optimizer falls
with the rows and columns that a device holds at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_loader.sharding.presets import CONTEXT_AXIS
from roxxel_store.screen import short_size

from roxxel_train._step.placement import most_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from roxxel_curriculum import ResolvedPhase

    from roxxel_train._step.compiled import CompiledShape
    from roxxel_train._step.placement import BatchPlacement

REMEDY = (
    "raise grad_accum_steps, shard the model, use smaller batches, or split long rows "
    f"over a mesh axis {CONTEXT_AXIS!r}"
)
"""What to do if it is only known that a batch does not fit."""

_MOST_TRIED = 1 << 12


@dataclass(frozen=True)
class Fitting:
    """How the batches of a run may be divided further.

    Attributes:
        placement: How the batches are divided over the mesh.
        phases: The phases of the run; all their batches divide into as many parts.
        parts: Parts of an accumulated batch.
        whole: Shapes of batches whose columns the model does not split.
    """

    placement: BatchPlacement
    phases: Sequence[ResolvedPhase]
    parts: int
    whole: Collection[tuple[int, ...]]

    def held(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns that a device works on at a time."""
        return self.placement.held(shape, self.parts, is_whole=shape in self.whole)

    def remedy(self, shape: CompiledShape, limit: int) -> str:
        """Return what to do about a program that needs more than `limit` bytes."""
        fixed = (shape.device_bytes or 0) - shape.activation_bytes
        if fixed >= limit:
            return (
                f"model, optimizer and batch alone take {short_size(fixed)}, so shard "
                "the model over more devices"
            )
        held = math.prod(self.held(shape.shape))
        for change, less in self._in_parts(shape.shape):
            share = math.prod(less) / held
            needed = fixed + math.ceil(shape.activation_bytes * share)
            if needed <= limit:
                return f"with {change}, a device would need about {short_size(needed)}"
        return REMEDY

    def _in_parts(
        self, shape: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each larger number of parts that leaves no device idle."""
        most, is_whole = most_parts(self.phases, self.placement), shape in self.whole
        for parts in range(self.parts + 1, min(most, _MOST_TRIED) + 1):
            if most % parts == 0:
                held = self.placement.held(shape, parts, is_whole=is_whole)
                yield f"grad_accum_steps={parts}", held
