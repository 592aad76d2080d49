# /// script
# requires-python = ">=3.11"
# dependencies = ["jax", "numpy"]
# ///
"""Upper limits of the speed of a loader: programs that only move the tokens.

`memcpy` copies the number of bytes in a batch. `cast` copies consecutive tokens and
casts them to int32. `gather` is numpy's own gather of random windows, cast to int32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from serve import Job, flat_tokens, serve

if TYPE_CHECKING:
    from collections.abc import Iterator


def batches(job: Job) -> Iterator[np.ndarray]:
    return {"memcpy": memcpy, "cast": cast, "gather": gather}[job.variant](job)


def stretches(job: Job) -> Iterator[slice]:
    """Yield the consecutive token ranges of an epoch's batches."""
    size = job.batch_size * job.seq_len
    for step in range(job.start, job.sources[0].num_tokens // size):
        yield slice(step * size, (step + 1) * size)


def memcpy(job: Job) -> Iterator[np.ndarray]:
    line = flat_tokens(job)
    shape = (job.batch_size, job.seq_len)
    size = job.batch_size * job.seq_len * 4 // line.itemsize
    last = len(line) - size
    for part in stretches(job):
        start = min(part.start, last)
        yield line[start : start + size].copy().view(np.int32).reshape(shape)


def cast(job: Job) -> Iterator[np.ndarray]:
    line = flat_tokens(job)
    for part in stretches(job):
        yield line[part].astype(np.int32).reshape(job.batch_size, job.seq_len)


def gather(job: Job) -> Iterator[np.ndarray]:
    line = flat_tokens(job)
    windows = sliding_window_view(line, job.seq_len)
    steps = len(line) // job.seq_len // job.batch_size
    order = np.random.default_rng(job.seed).permutation(len(line) // job.seq_len)
    starts = order[: steps * job.batch_size].reshape(steps, -1) * job.seq_len
    for row in starts[job.start :]:
        yield windows[row].astype(np.int32)


serve(batches)
