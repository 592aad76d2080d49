"""The loop of a run that reads from a bucket: it gets a batch, then sleeps for a step.

The script of a loader calls `run(batches, write)`. The argument of the script is one
JSON object: `do` is `write` or `read`, and the other members are those of `Job`.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

DOCUMENT = 50_000


@dataclass(frozen=True)
class Job:
    """A corpus of random uint16 tokens, and the steps to read.

    `loader` is the row of the report. `data` is the folder that the server serves as
    the bucket `data`; `cache` is an empty folder. The corpus has `num_documents`
    documents of `DOCUMENT` tokens, in shards of about `shard_bytes`.
    """

    loader: str
    data: str
    cache: str
    num_documents: int
    shard_bytes: int
    rows: int
    seq_len: int
    start: int
    steps: int
    step_s: float

    def documents(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the documents."""
        chosen = np.random.default_rng(0)
        for _ in range(self.num_documents):
            yield chosen.integers(0, 50_000, DOCUMENT, dtype=np.uint16)


def run(
    batches: Callable[[Job], Iterable[Any]], write: Callable[[Job, Path], None]
) -> None:
    """Write the corpus, or read batches and print what was measured."""
    given = json.loads(sys.argv[1])
    do = given.pop("do")
    job = Job(**given)
    if do == "write":
        write(job, Path(job.data))
        return
    began = time.perf_counter()
    waits: list[float] = []
    asked = began
    for _, batch in zip(range(job.steps), batches(job), strict=False):
        assert np.asarray(batch).shape == (job.rows, job.seq_len)
        waits.append(time.perf_counter() - asked)
        time.sleep(job.step_s)
        asked = time.perf_counter()
    taken = time.perf_counter() - began
    print(
        json.dumps({"waits": waits, "seconds": taken, "private": private_bytes()}),
        flush=True,
    )


def private_bytes() -> int:
    """Return the memory of this process that is not of mapped files, at the end."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) << 10
