"""Roxxel to one CPU device: from a bucket by byte ranges, with a cache, or from a disk.

`ready` is no loader: all batches are on the device before the loop begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from bucket_loop import Job, run
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_loader import device_stream

if TYPE_CHECKING:
    from collections.abc import Iterable


def write(job: Job, data: Path) -> None:
    Roxxel(data / "web_*.rox").write(
        job.documents(), vocab_size=50_000, max_shard_bytes=job.shard_bytes
    )


def corpus(job: Job) -> Roxxel:
    url = "s3://data/web_*.rox"
    if job.loader in {"disk", "ready"}:
        return Roxxel(Path(job.data) / "web_*.rox")
    if job.loader == "cached":
        return Roxxel(url, cache=job.cache)
    return Roxxel(url, check="blocks" if job.loader == "blocks" else "headers")


def batches(job: Job) -> Iterable[Any]:
    stop = job.start + job.steps
    phase = Phase(stop, job.rows, job.seq_len)
    sampler = Curriculum(corpus(job), [phase]).sampler(seed=0)
    stream = device_stream(sampler, job.start, stop)
    return jax.block_until_ready(list(stream)) if job.loader == "ready" else stream


run(batches, write)
