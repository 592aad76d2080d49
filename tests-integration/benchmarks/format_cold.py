"""Measures how long `read` blocks on cold pages, with and without `will_need`.

The program closes the maps of a corpus on a disk and evicts its pages; `mincore` must
then find almost no page in memory. It reads batches with some milliseconds of other
work between them, once without hints and once with hints a few batches ahead. Meanwhile
another thread repeatedly sleeps for a millisecond. If this thread wakes late, a read of
the disk has held Python's global interpreter lock that long.

    python tests-integration/benchmarks/format_cold.py --folder DIR   # a disk, no tmpfs
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import numpy as np
from peers import cold
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Generator

AHEAD = 4

NAP_S = 0.001


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work-ms", type=float, default=5.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        corpus = write_corpus(Path(folder), options.mib)
        run(corpus, options.batches, options.rounds, options.work_ms / 1000)


def write_corpus(folder: Path, mib: int) -> Roxxel:
    """Write some shards."""
    corpus = Roxxel(folder / "cold_*.rox")
    corpus.write(
        (np.full(2**18, i % 50_000, np.uint16) for i in range(mib * 2)),
        max_shard_bytes=mib * 2**18,
    )
    return corpus


def run(corpus: Roxxel, batches: int, rounds: int, work_s: float) -> None:
    """Measure in turn, and print."""
    ratios: list[float] = []
    stops: list[float] = []
    for number in range(rounds):
        with longest_stop(stops):
            plain = blocked_s(corpus, batches, work_s, number, ahead=0)
        with longest_stop(stops):
            hinted = blocked_s(corpus, batches, work_s, number, ahead=AHEAD)
        ratios.append(hinted / plain)
        print(
            f"{batches} batches of 16x2049, {work_s * 1e3:.0f} ms of work each: "
            f"blocked {plain * 1e3:7.1f} ms without, {hinted * 1e3:7.1f} ms with "
            f"will_need, ratio {ratios[-1]:.2f}; another thread stood still for at "
            f"most {stops[-2] * 1e3:.1f} and {stops[-1] * 1e3:.1f} ms"
        )
    print(
        f"median ratio {statistics.median(ratios):.2f}; another thread stood still for "
        f"at most {statistics.median(stops) * 1e3:.1f} ms, in the median"
    )


@contextmanager
def longest_stop(stops: list[float]) -> Generator[None]:
    """Add the maximum seconds by which another thread oversleeps meanwhile."""
    is_over = Event()
    longest = 0.0

    def nap() -> None:
        nonlocal longest
        while not is_over.is_set():
            began = time.perf_counter()
            time.sleep(NAP_S)
            longest = max(longest, time.perf_counter() - began - NAP_S)

    thread = Thread(target=nap)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    stops.append(longest)


def blocked_s(
    corpus: Roxxel, batches: int, work_s: float, seed: int, *, ahead: int
) -> float:
    """Return the seconds spent in `read` and `will_need`."""
    drop(corpus)
    rng = np.random.default_rng(seed)
    length = 2049
    starts = rng.integers(0, corpus.num_tokens - length, (batches, 16))
    blocked = 0.0
    for batch in range(ahead and min(ahead, batches)):
        corpus.will_need(starts[batch], length)
    time.sleep(work_s)
    for batch in range(batches):
        started = time.perf_counter()
        if ahead and batch + ahead < batches:
            corpus.will_need(starts[batch + ahead], length)
        corpus.read(starts[batch], length, np.int32)
        blocked += time.perf_counter() - started
        time.sleep(work_s)
    return blocked


def drop(corpus: Roxxel) -> None:
    """Drop the corpus from the page cache."""
    paths = corpus.paths
    corpus.close()
    cold.drop_all(map(Path, paths))


if __name__ == "__main__":
    main()
