# /// script
# requires-python = ">=3.11"
# dependencies = ["datasets==5.2.0", "jax", "numpy"]
# ///
"""Hugging Face datasets: samples in Arrow files, shuffled by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import datasets
import numpy as np
import pyarrow as pa
from serve import Corpus, Job, Source, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

datasets.disable_progress_bars()


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    if seq_len is None:
        ends = pa.array(np.append(0, corpus.ends))  # 64 bits, so "large"
        column = pa.LargeListArray.from_arrays(ends, pa.array(corpus.line))
    else:
        line = pa.array(corpus.samples(seq_len).ravel())
        column = pa.FixedSizeListArray.from_arrays(line, seq_len)
    table = pa.table({"tokens": column})
    datasets.Dataset(table).save_to_disk(str(folder / "arrow"))


def samples(source: Source, job: Job) -> datasets.Dataset:
    stored = datasets.load_from_disk(str(source.folder / "arrow"))
    return stored.shuffle(seed=job.seed, keep_in_memory=True)


def batches(job: Job) -> Iterator[np.ndarray]:
    parts = [samples(source, job) for source in job.sources]
    order = parts[0]
    if len(parts) > 1:
        weights = [source.weight for source in job.sources]
        shares = [weight / sum(weights) for weight in weights]
        order = datasets.interleave_datasets(parts, shares, seed=job.seed)
    if job.process_count > 1:
        order = order.shard(job.process_count, job.process_index, contiguous=False)
    if job.start:
        order = order.skip(job.start * job.process_batch_size)
    table = order.with_format("arrow")
    size = job.process_batch_size
    for batch in table.iter(size, drop_last_batch=True):
        values = batch.column("tokens").combine_chunks().flatten()
        yield np.asarray(values).astype(np.int32).reshape(size, job.seq_len)


serve(batches, write, packages=("datasets", "pyarrow"))
