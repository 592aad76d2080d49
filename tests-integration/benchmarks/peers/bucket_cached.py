"""Roxxel by byte ranges at first, and from a cache that fills meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bucket_loop import Job, run
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_loader import device_stream

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def write(job: Job, data: Path) -> None:
    Roxxel(data / "web_*.rox").write(
        job.documents(), vocab_size=50_000, max_shard_bytes=job.shard_bytes
    )


def batches(job: Job) -> Iterable[Any]:
    stop = job.start + job.steps
    phase = Phase(stop, job.rows, job.seq_len)
    corpus = Roxxel("s3://data/web_*.rox", cache=job.cache)
    return device_stream(Curriculum(corpus, [phase]).sampler(seed=0), job.start, stop)


run(batches, write)
