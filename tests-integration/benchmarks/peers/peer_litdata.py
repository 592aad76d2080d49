# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "litdata==0.2.76", "numpy"]
# ///
"""litdata's StreamingDataset of tokens over local chunks, without workers."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from litdata import CombinedStreamingDataset, StreamingDataset, TokensLoader
from litdata.streaming import Cache
from serve import Corpus, Job, Source, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    del seq_len
    chunks = folder / "chunks"
    chunks.mkdir()
    cache = Cache(str(chunks), chunk_bytes="64MB", item_loader=TokensLoader())
    for number, document in enumerate(corpus.documents()):
        cache[number] = document
    cache.done()
    cache.merge()


def rows_of(source: Source, job: Job) -> StreamingDataset:
    dataset = StreamingDataset(
        str(source.folder / "chunks"),
        item_loader=TokensLoader(block_size=job.seq_len),
        shuffle=True,
        drop_last=True,
        seed=job.seed,
    )
    dataset.set_batch_size(job.process_batch_size)  # as its loader does; order is of it
    return dataset


def batches(job: Job) -> Iterator[np.ndarray]:
    os.environ["WORLD_SIZE"] = str(job.process_count)
    os.environ["GLOBAL_RANK"] = str(job.process_index)
    os.environ["NNODES"] = "1"
    parts = [rows_of(source, job) for source in job.sources]
    dataset = parts[0]
    if len(parts) > 1:
        weights = [source.weight for source in job.sources]
        dataset = CombinedStreamingDataset(
            parts, seed=job.seed, weights=weights, iterate_over_all=False
        )
    if job.start:
        if len(parts) > 1:
            raise NotImplementedError  # needs what each gave, so the batches before
        size = job.process_batch_size
        dataset.load_state_dict(dataset.state_dict(job.start * size, 0, size))
    rows = map(np.asarray, dataset)  # iter() of a data set begins its epoch again
    while made := list(islice(rows, job.process_batch_size)):
        if len(made) < job.process_batch_size:
            return
        yield np.stack([row.astype(np.int32) for row in made])


serve(batches, write, packages=("litdata", "torch"))
