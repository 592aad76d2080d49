# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "loadax==0.2.1", "numpy"]
# ///
"""loadax over a memory map, without workers.

loadax has no state from which to resume. So a resume is measured by opening a data set
that contains only the batches after the step, in the same shuffled order.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import jax
import numpy as np
from loadax import (
    Batcher,
    DataloaderBuilder,
    Dataset,
    NaiveDataloader,
    PartialDataset,
    ShuffledDataset,
)
from loadax.strategy import FixedBatchStrategy
from serve import Job, flat_tokens, serve

if TYPE_CHECKING:
    from collections.abc import Iterator


class Windows(Dataset[np.ndarray]):
    """The samples of a memory-mapped line."""

    def __init__(self, line: np.ndarray, length: int) -> None:
        self._line = line
        self._length = length

    def __len__(self) -> int:
        return len(self._line) // self._length

    def get(self, index: int) -> np.ndarray | None:
        start = int(index) * self._length
        return self._line[start : start + self._length].astype(np.int32)


def batches(job: Job) -> Iterator[np.ndarray]:
    if len(job.sources) > 1:
        raise NotImplementedError
    windows = Windows(flat_tokens(job), job.seq_len)
    shuffled = ShuffledDataset(windows, jax.random.PRNGKey(job.seed))
    whole = len(windows) // job.batch_size  # a short last batch never ends
    batcher = Batcher(np.stack)
    if job.process_count > 1:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
        builder = DataloaderBuilder(batcher).batch_size(job.process_batch_size)
        builder = builder.shard(mesh, "data", job.process_count, job.process_index)
        return islice(iter(builder.build(shuffled)), whole)
    rest = PartialDataset(shuffled, job.start * job.batch_size, len(windows))
    loader = NaiveDataloader(rest, batcher, FixedBatchStrategy(job.batch_size))
    return islice(iter(loader), whole - job.start)


serve(batches, packages=("loadax",))
