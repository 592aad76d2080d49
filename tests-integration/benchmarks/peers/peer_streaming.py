# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "mosaicml-streaming==0.13.0", "numpy"]
# ///
"""mosaicml-streaming over local MDS shards, read without a DataLoader."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
from serve import Corpus, Job, serve
from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    shape = "" if seq_len is None else f":{seq_len}"
    columns = {"tokens": f"ndarray:{corpus.line.dtype}{shape}"}
    with MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for record in corpus.records(seq_len):
            writer.write({"tokens": record})


def batches(job: Job) -> Iterator[np.ndarray]:
    clean_stale_shared_memory()
    if job.process_count > 1:
        yield from _one_of_group(job)
    else:
        yield from _read(job)


def _one_of_group(job: Job) -> list[np.ndarray]:
    """Return the batches of one process; they open and read the corpus together."""
    group = [replace(job, process_index=index) for index in range(job.process_count)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(len(group), get_context("spawn")) as pool,
    ):
        made = list(pool.map(_read_in_group, group, [f"{folder}/group"] * len(group)))
    return made[job.process_index]


def _read_in_group(job: Job, meeting: str) -> list[np.ndarray]:
    os.environ |= {
        "RANK": str(job.process_index),
        "LOCAL_RANK": str(job.process_index),
        "WORLD_SIZE": str(job.process_count),
        "LOCAL_WORLD_SIZE": str(job.process_count),
    }
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=job.process_index,
        world_size=job.process_count,
    )
    made = list(_read(job))
    distributed.destroy_process_group()
    return made


def _read(job: Job) -> Iterator[np.ndarray]:
    streams = [
        Stream(
            local=str(source.folder / "mds"),
            **({"proportion": source.weight} if len(job.sources) > 1 else {}),
        )
        for source in job.sources
    ]
    num_rows = job.process_batch_size
    dataset = StreamingDataset(
        streams=streams,
        shuffle=True,
        shuffle_seed=job.seed,
        batch_size=num_rows,
        num_canonical_nodes=1,
    )
    if job.start:
        state = dataset.state_dict(job.start * job.batch_size, from_beginning=True)
        dataset.load_state_dict(state | {"epoch": 0})  # as after the first batch
    rows = iter(dataset)
    for _ in range(len(dataset) // num_rows - job.start):
        made = [row["tokens"].astype(np.int32) for row in islice(rows, num_rows)]
        yield np.stack(made)


if __name__ == "__main__":  # processes of a group import this file
    serve(batches, write, packages=("mosaicml-streaming", "torch"))
