"""Kills writers at random moments; what they leave is never readable and wrong.

A child process writes a corpus of small shards and is killed by SIGKILL at a random
moment, which two random numbers give: documents, and seconds after them. Every shard
that is then visible must be whole and hold the right documents; the folder must be
refused as a corpus unless the manifest is committed; then the same write again must
give the whole corpus and leave nothing over.

    python tests-integration/benchmarks/format_kill.py              # 5 times
    python tests-integration/benchmarks/format_kill.py --times 50   # the whole
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NUM_DOCUMENTS = 2000
LIMIT = 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        write(options.child, told())
        return
    found = run(options.times, options.seed)
    print(", ".join(f"{what}: {count}" for what, count in sorted(found.items())))


def run(times: int, seed: int) -> collections.Counter[str]:
    """Kill and look; return what was found how often."""
    chance = random.Random(seed)
    expected = documents()
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        write(Path(folder))
        whole_s = time.perf_counter() - started
        num_shards = Roxxel(folder).num_shards
    found: collections.Counter[str] = collections.Counter()
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            kill_writer(
                Path(folder),
                after=chance.randrange(NUM_DOCUMENTS + 1),
                delay_s=chance.random() * whole_s / num_shards,
            )
            shards = sorted(Path(folder).glob("*.rox"))
            found["killed with " + ("some" if shards else "no") + " shards"] += 1
            if shards:
                corpus = Roxxel(shards, check="blocks")
                assert corpus.verify().ok
                for ours, theirs in zip(corpus.documents, expected, strict=False):
                    assert np.array_equal(ours, theirs)
                refused = is_refused(folder)
                found["committed already"] += not refused
                found["refused as a corpus"] += refused
                # All shards may be there before the commit makes them a corpus.
                assert refused or len(shards) == num_shards
            with contextlib.redirect_stderr(io.StringIO()):
                write(Path(folder))
            corpus = Roxxel(folder, check="blocks")
            assert corpus.verify().ok
            for ours, theirs in zip(corpus.documents, expected, strict=True):
                assert np.array_equal(ours, theirs)
            left = Roxxel(Path(folder) / "c_*.rox").leftovers()
            assert not left, left
            found["right after a second write"] += 1
    return found


def is_refused(folder: str) -> bool:
    """Return whether reading the folder says that its write was interrupted."""
    try:
        return Roxxel(folder).num_tokens < 0
    except ShardError as error:
        return "was interrupted" in str(error)


def kill_writer(folder: Path, after: int, delay_s: float) -> None:
    """Start a writer in a process of its own; kill it some time after a document."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", str(folder)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout:
        child.stdout.read(after)
        time.sleep(delay_s)
        child.send_signal(signal.SIGKILL)
        child.wait()


def write(folder: Path, data: Iterable[Any] | None = None) -> None:
    """Write the corpus, or keep it."""
    Roxxel(folder / "c_*.rox").write(
        documents() if data is None else data,
        separator=0,
        vocab_size=1000,
        max_shard_bytes=LIMIT,
    )


def told() -> Iterator[Any]:
    """Yield the documents, and tell of each by a byte on the standard output."""
    for document in documents():
        os.write(1, b".")
        yield document


def documents() -> list[Any]:
    """Return the same documents each time."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 1000, 200) for _ in range(NUM_DOCUMENTS)]


if __name__ == "__main__":
    main()
