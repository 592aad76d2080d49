"""What an update is fed: a batch, and the source of each of its rows.

The sources are one int32 array of shape `(batch_size,)`, which the sampler computes
without reading tokens. The array has the sharding of the rows of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler


class Fed(NamedTuple):
    """A batch as the user's function receives it, and the source of each row.

    `source` holds indices into `Sampler.source_names`.
    """

    batch: Any
    source: Any


class FedRows:
    """The batches of a sampler as `Fed`, for `device_stream`."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def shape(self, step: int) -> tuple[int, int]:
        """Return the shape of a batch."""
        return self._sampler.shape(step)

    def rows(self, step: int, rows: slice, columns: slice | None = None) -> Fed:
        """Return part of a batch, and the sources of its rows."""
        source = self._sampler.windows(step).source[rows].astype(np.int32)
        return Fed(self._sampler.rows(step, rows, columns), source)

    def will_need(self, step: int, n: int = 1, rows: slice | None = None) -> None:
        """Pass a hint to the sampler."""
        self._sampler.will_need(step, n, rows)
