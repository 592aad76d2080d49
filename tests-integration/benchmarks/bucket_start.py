"""Counts what N hosts read from a bucket until each has its rows of the first step.

A server on this machine stands for the bucket. Each fake host opens a corpus of
`SHARDS` shards and reads its rows of step 0, with segment ids, as a process of a run
does. Every host reads the whole manifest, but only those parts of the shards that its
rows need. So with more hosts, only the bytes of the manifest grow.

    python tests-integration/benchmarks/bucket_start.py
    python tests-integration/benchmarks/bucket_start.py --hosts 1 8
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel import Curriculum, Phase, Roxxel

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket, sent, set_faults, stats

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS = 16
DOCUMENTS = 64
DOCUMENT_TOKENS = 8192
BATCH_SIZE = 64
SEQ_LEN = 1025


@dataclass(frozen=True)
class Reads:
    """What a number of hosts have read from the bucket in total."""

    hosts: int
    requests: int
    manifest_bytes: int
    shard_bytes: int
    largest_share: float
    """The largest part of a shard that the hosts have read on average."""

    def __str__(self) -> str:
        """Return the figures as one line."""
        return (
            f"{self.hosts:5} {self.requests / self.hosts:15.1f} "
            f"{self.manifest_bytes / self.hosts:15,.0f} "
            f"{self.shard_bytes / self.hosts:16,.0f} {self.largest_share:12.1%}"
        )


HEAD = "hosts requests a host  manifest B a host  shards B a host  of one shard"


def read_first_step(hosts: int, port: int) -> Reads:
    """Read the first step as `hosts` processes, one after the other."""
    set_faults(port)
    rows = BATCH_SIZE // hosts
    for host in range(hosts):
        corpus = Roxxel("s3://data/web_*.rox")
        phases = [Phase(10, batch_size=BATCH_SIZE, seq_len=SEQ_LEN)]
        fields: Any = ("tokens", "segment_ids", "positions")
        sampler = Curriculum(corpus, phases).sampler(3, fields=fields)
        sampler.rows(0, range(host * rows, (host + 1) * rows))
    by_object = sent(port)
    manifest = sum(size for key, size in by_object.items() if key.endswith(".json"))
    shards = {key: size for key, size in by_object.items() if key.endswith(".rox")}
    whole = DOCUMENTS * DOCUMENT_TOKENS * 2
    return Reads(
        hosts,
        stats(port)["requests"],
        manifest,
        sum(shards.values()),
        max(shards.values()) / whole / hosts,
    )


def main(arguments: Sequence[str] | None = None) -> list[Reads]:
    """Print and return what each number of hosts has read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args(arguments)
    chosen = np.random.default_rng(0)
    found: list[Reads] = []
    with tempfile.TemporaryDirectory() as folder, running_bucket(Path(folder)) as port:
        Roxxel(f"{folder}/data/web_*.rox").write(
            (
                chosen.integers(1, 90, DOCUMENT_TOKENS, dtype=np.uint16)
                for _ in range(SHARDS * DOCUMENTS)
            ),
            dtype=np.uint16,
            max_shard_bytes=DOCUMENTS * DOCUMENT_TOKENS * 2 + 16384,
        )
        sys.stdout.write(f"{HEAD}\n")
        for hosts in options.hosts:
            found.append(read_first_step(hosts, port))
            sys.stdout.write(f"{found[-1]}\n")
    return found


if __name__ == "__main__":
    main()
