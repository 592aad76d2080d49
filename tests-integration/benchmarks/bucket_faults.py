"""Reads a corpus from a server that fails at random: right tokens, or one error.

Each run opens a corpus in a bucket whose server fails at a random rate, in some of
these ways: it responds with 503, truncates bodies, resets or ignores a request, sends
wrong or additional bytes, ignores ranges, or replaces objects. The run prefetches and
reads windows, documents and spans. A run passes with one of these results:

- `right`: every read equals the same read on a disk.
- `refused`: a read raised BucketError or ShardError within the time limit, the message
  begins with a URL of the corpus, and all earlier reads were right.

Reads verify blocks, because only checksums detect wrong bytes. At the end, no fetching
thread may be left. A failure prints the seed of its run.

    python tests-integration/benchmarks/bucket_faults.py                # 100 runs
    python tests-integration/benchmarks/bucket_faults.py --runs 2000    # the campaign
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from roxxel_format import BucketError, Roxxel, ShardError

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket, set_faults

KINDS = ("503", "cut", "reset", "hang", "wrong", "longer", "whole", "replaced")
RATES = (0.01, 0.1, 0.3, 1.0)
TIMEOUT_S = 0.5
MOST_S = 20.0
"""A read waits for one request after another, but a hint fails in the background."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, running_bucket(Path(folder)) as port:
        data = Path(folder, "data")
        kept, other = Path(folder, "kept"), Path(folder, "other")
        write(kept, 0)
        write(other, 1)
        local = Roxxel(kept / "web_*.rox")
        for run in range(options.runs):
            seed = options.seed * 1_000_000 + run
            put(kept, data)
            counts[one_run(random.Random(seed), seed, port, local, other, data)] += 1
    for what, number in sorted(counts.items()):
        print(f"{what}: {number}")
    check_threads()


def write(folder: Path, seed: int) -> None:
    folder.mkdir()
    chosen = np.random.default_rng(seed)
    sizes: list[int] = chosen.integers(1, 900, 400).tolist()
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(
        [chosen.integers(1, 90, size, dtype=np.uint16) for size in sizes],
        separator=0,
        vocab_size=90,
        max_shard_bytes=40_000,
    )


def put(source: Path, data: Path) -> None:
    """Upload all objects of a corpus; unchanged ones stay."""
    for path in source.iterdir():
        there = data / path.name
        if not there.exists() or there.read_bytes() != path.read_bytes():
            replace(path, there)


def replace(source: Path, there: Path) -> None:
    draft = there.with_name(f".{there.name}")
    shutil.copyfile(source, draft)
    draft.rename(there)


def one_run(
    chosen: random.Random,
    seed: int,
    port: int,
    local: Roxxel,
    other: Path,
    data: Path,
) -> str:
    kinds = chosen.sample(KINDS, chosen.randint(1, 3))
    is_replaced = "replaced" in kinds
    faults = [kind for kind in kinds if kind != "replaced"]
    rate = chosen.choice(RATES)
    set_faults(port, kinds=faults, rate=rate, seed=seed, latency_s=0.001)
    label = " ".join(sorted(kinds)) if len(kinds) == 1 else "several"
    remote = Roxxel("s3://data/web_*.rox", check="blocks", timeout_s=TIMEOUT_S)
    started = time.monotonic()
    try:
        for turn in range(chosen.randint(1, 6)):
            if is_replaced and turn == 1:
                path = chosen.choice(sorted(other.glob("*.rox")))
                replace(path, data / path.name)
            started = time.monotonic()
            read_and_compare(chosen, remote, local)
            check_time(started, seed)
    except (BucketError, ShardError) as error:
        check_time(started, seed)
        if not str(error).startswith("s3://data/web_"):
            raise SystemExit(f"seed {seed}: the error names no URL: {error}") from error
        return f"{label} refused"
    except BaseException as error:
        raise SystemExit(f"seed {seed}: {type(error).__name__}: {error}") from error
    return f"{label} right"


def read_and_compare(chosen: random.Random, remote: Roxxel, local: Roxxel) -> None:
    length = chosen.randint(1, 3000)
    last = local.num_tokens - length
    starts = [chosen.randint(0, last) for _ in range(chosen.randint(1, 12))]
    if chosen.random() < 0.5:
        remote.will_need(starts, length)
        if chosen.random() < 0.5:
            time.sleep(0.01)
    expect(np.array_equal(remote.read(starts, length), local.read(starts, length)))
    if chosen.random() < 0.3:
        document = chosen.randrange(local.num_documents)
        found = remote.documents[document]
        expect(np.array_equal(found, local.documents[document]))
    if chosen.random() < 0.3:
        spans = remote.document_spans(starts[0], starts[0] + length)
        expect(
            np.array_equal(spans, local.document_spans(starts[0], starts[0] + length))
        )


def expect(is_so: bool) -> None:
    if not is_so:
        raise AssertionError("wrong tokens")


def check_time(started: float, seed: int) -> None:
    took = time.monotonic() - started
    if took > MOST_S:
        raise SystemExit(f"seed {seed}: a read took {took:.1f} s")


def check_threads() -> None:
    deadline = time.monotonic() + 30
    while any(thread.name == "roxxel-bucket" for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            raise SystemExit("threads that fetch are left")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
