# /// script
# requires-python = ">=3.11"
# dependencies = ["boto3", "mosaicml-streaming==0.13.0", "numpy"]
# ///
"""mosaicml-streaming over MDS shards in a bucket, read without a DataLoader."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from bucket_loop import Job, run
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(job: Job, data: Path) -> None:
    columns = {"tokens": f"ndarray:uint16:{job.seq_len}"}
    line = np.concatenate(list(job.documents()))
    with MDSWriter(
        out=str(data / "mds"), columns=columns, size_limit=job.shard_bytes
    ) as writer:
        for start in range(0, line.size - job.seq_len + 1, job.seq_len):
            writer.write({"tokens": line[start : start + job.seq_len]})


def batches(job: Job) -> Iterator[Any]:
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    clean_stale_shared_memory()
    dataset = StreamingDataset(
        remote="s3://data/mds",
        local=f"{job.cache}/mds",
        shuffle=True,
        batch_size=job.rows,
        num_canonical_nodes=1,
    )
    if job.start:
        state = dataset.state_dict(job.start * job.rows, from_beginning=True)
        dataset.load_state_dict(state | {"epoch": 0})
    rows = iter(dataset)
    while made := [row["tokens"].astype(np.int32) for row in islice(rows, job.rows)]:
        if len(made) == job.rows:
            yield np.stack(made)


run(batches, write)
