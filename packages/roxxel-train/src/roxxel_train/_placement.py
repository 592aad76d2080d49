"""Where the rows of a batch lie on the mesh, phase by phase."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Iterable


def data_parallel_mesh() -> Mesh:
    """Return all devices of all processes along one axis, `"data"`."""
    return Mesh(np.asarray(jax.devices()), ("data",))


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
