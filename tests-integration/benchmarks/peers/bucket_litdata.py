# /// script
# requires-python = ">=3.11"
# dependencies = ["boto3", "litdata==0.2.76", "numpy"]
# ///
"""litdata's StreamingDataset over chunks of tokens in a bucket, without workers."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from bucket_loop import Job, run
from litdata import StreamingDataset, TokensLoader
from litdata.streaming import Cache, downloader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write(job: Job, data: Path) -> None:
    chunks = data / "chunks"
    chunks.mkdir()
    cache = Cache(str(chunks), chunk_bytes=job.shard_bytes, item_loader=TokensLoader())
    for number, document in enumerate(job.documents()):
        cache[number] = document
    cache.done()
    cache.merge()


def batches(job: Job) -> Iterator[Any]:
    # The server of the benchmark speaks plain HTTP, which litdata has no option for.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset(
        "s3://data/chunks",
        cache_dir=f"{job.cache}/lit",
        item_loader=TokensLoader(block_size=job.seq_len),
        shuffle=True,
        drop_last=True,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    dataset.set_batch_size(job.rows)
    if job.start:
        done = job.start * job.rows
        dataset.load_state_dict(dataset.state_dict(done, 0, job.rows))
    rows = map(np.asarray, dataset)
    while made := [row.astype(np.int32) for row in islice(rows, job.rows)]:
        if len(made) == job.rows:
            yield np.stack(made)


run(batches, write)
