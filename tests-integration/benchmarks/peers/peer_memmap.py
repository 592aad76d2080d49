# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "numpy"]
# ///
"""A loop written by hand: a memory map, random samples, copied row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from serve import Corpus, Job, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "tokens.bin"


def write(corpus: Corpus, folder: Path, seq_len: int | None) -> None:
    del seq_len
    with (folder / NAME).open("wb") as file:
        for document in corpus.documents():
            file.write(document)


def batches(job: Job) -> Iterator[np.ndarray]:
    source = job.sources[0]
    if len(job.sources) > 1 or job.process_count > 1:
        raise NotImplementedError
    line = np.memmap(source.folder / NAME, job.dtype, "r")
    length = job.seq_len
    order = np.random.default_rng(job.seed).permutation(source.num_tokens // length)
    for first in range(
        job.start * job.batch_size, len(order) - job.batch_size + 1, job.batch_size
    ):
        rows = order[first : first + job.batch_size] * length
        yield np.stack([line[row : row + length].astype(np.int32) for row in rows])


serve(batches, write)
