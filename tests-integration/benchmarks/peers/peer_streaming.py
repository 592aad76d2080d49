# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "mosaicml-streaming==0.13.0", "numpy"]
# ///
"""mosaicml-streaming over local MDS shards, read without a DataLoader."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from serve import Corpus, Job, serve
from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

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
    if job.process_count > 1:
        raise NotImplementedError  # needs a process group of torch
    clean_stale_shared_memory()
    streams = [
        Stream(
            local=str(source.folder / "mds"),
            **({"proportion": source.weight} if len(job.sources) > 1 else {}),
        )
        for source in job.sources
    ]
    dataset = StreamingDataset(
        streams=streams,
        shuffle=True,
        shuffle_seed=job.seed,
        batch_size=job.batch_size,
        num_canonical_nodes=1,
    )
    if job.start:
        state = dataset.state_dict(job.start * job.batch_size, from_beginning=True)
        dataset.load_state_dict(state | {"epoch": 0})  # as after the first batch
    rows = iter(dataset)
    whole = len(dataset) // job.batch_size - job.start
    for _ in range(whole):
        made = [row["tokens"].astype(np.int32) for row in islice(rows, job.batch_size)]
        yield np.stack(made)


serve(batches, write, packages=("mosaicml-streaming", "torch"))
