"""The input of an update: a batch, its sources, and its gradient-accumulation parts."""

from __future__ import annotations

from typing import Any, NamedTuple


class Fed(NamedTuple):
    """A batch as the user's function receives it, its sources and its parts.

    `source` holds indices into `Sampler.source_names`, and `order` the result of
    `deal_rows`, or None if the update does not cut its batch into parts. Both are int32
    arrays of shape `(batch_size,)`, with the sharding of the rows of the batch.
    """

    batch: Any
    source: Any
    order: Any = None
