"""Kills processes that append to one corpus; no acknowledged append is lost.

Several processes append small documents at the same time. Each document begins with the
number of its process and the number of its append. Each process has a journal, synced
to disk, with an entry before every append, and another after `write` has returned. All
processes are killed by SIGKILL at random moments; they start again with the append
after the last one in their journal. At the end, the corpus has every finished append
exactly once, in one piece and in order. An unfinished append is complete or absent.

First the program prints the CPU time of an append to a corpus with few versions, with
many, and with many after a compaction.

    python tests-integration/benchmarks/format_append.py                # small
    python tests-integration/benchmarks/format_append.py --versions 1000
    python tests-integration/benchmarks/format_append.py --appends 200 --kills 20
    python tests-integration/benchmarks/format_append.py --appends 200 --processes 4
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _campaign
import numpy as np
from _campaign import Killed
from roxxel_format import Roxxel

if TYPE_CHECKING:
    import numpy.typing as npt

ALONE = 5  # Appends that are timed before the campaign.
TRIED, DONE = "tried", "done"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=20, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kills", type=int, default=4, help="of each process")
    parser.add_argument("--versions", type=int, default=20, help="appends to time")
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument(
        "--append", nargs=4, metavar=("PATTERN", "PROCESS", "FIRST", "STOP")
    )
    options = parser.parse_args()
    if options.append:
        pattern, *numbers = options.append
        append(pattern, *map(int, numbers))
        return
    time_versions(options.versions)
    seed = random.randrange(2**32) if options.seed is None else options.seed
    run(options.appends, options.processes, options.kills, seed)


def time_versions(num_versions: int) -> None:
    """Print the CPU time of the appends at the beginning and at the end."""
    times_ms: list[float] = []
    with tempfile.TemporaryDirectory() as folder:

        def append(number: int) -> None:
            started = time.process_time()
            _campaign.write(f"{folder}/c_*.rox", documents(0, number), "append")
            times_ms.append(1e3 * (time.process_time() - started))

        def bytes_each() -> float:
            return Path(folder, "c_manifest.json").stat().st_size / num_versions

        for number in range(num_versions):
            append(number)
        before = bytes_each()
        started = time.process_time()
        Roxxel(f"{folder}/c_*.rox").compact()
        compact_s = time.process_time() - started
        after = bytes_each()
        for number in range(10):
            append(num_versions + number)
    first, last, compacted = times_ms[:10], times_ms[-20:-10], times_ms[-10:]
    print(
        f"an append takes {sum(first) / len(first):.1f} ms of CPU at version 10 and "
        f"{sum(last) / len(last):.1f} at version {num_versions}; the manifest has "
        f"{before:.0f} bytes for each. After a compaction ({compact_s:.1f} s) an "
        f"append takes {sum(compacted) / len(compacted):.1f} ms, and the manifest has "
        f"{after:.0f} bytes for each old version"
    )


def append(pattern: str, process: int, first: int, stop: int) -> None:
    """Append the documents of some appends, and keep the journal."""
    os.write(1, b".")
    with journal(pattern, process).open("a", encoding="ascii") as file:

        def note(what: str, number: int) -> None:
            file.write(f"{what} {number}\n")
            file.flush()
            os.fsync(file.fileno())

        for number in range(first, stop):
            note(TRIED, number)
            _campaign.write(pattern, documents(process, number), "append")
            note(DONE, number)


def documents(process: int, number: int) -> list[npt.NDArray[np.uint16]]:
    """Return the documents of one append: each begins with its process and number."""
    rng = np.random.default_rng([process, number])
    return [
        np.array([process, number, *rng.integers(1, 1000, rng.integers(1, 50))])
        for _ in range(rng.integers(1, 4))
    ]


def journal(pattern: str, process: int) -> Path:
    """Return the path of a process's journal."""
    return Path(pattern).parent.with_name(f"journal-{process}")


def noted(pattern: str, process: int) -> dict[str, set[int]]:
    """Return the appends that a process tried, and the finished ones."""
    found: dict[str, set[int]] = {TRIED: set(), DONE: set()}
    path = journal(pattern, process)
    for line in path.read_text(encoding="ascii").splitlines():
        what, number = line.split()
        found[what].add(int(number))
    return found


def run(num_appends: int, num_processes: int, num_kills: int, seed: int) -> None:
    """Append and kill, check the corpus, and print the count of each outcome."""
    print(
        f"{num_processes} processes with {num_appends} appends and {num_kills} kills "
        f"each, from seed {seed}"
    )
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "corpus")
        folder.mkdir()
        pattern = f"{folder}/c_*.rox"
        started = time.perf_counter()
        for number in range(ALONE):
            _campaign.write(pattern, documents(0, number), "append")
        append_s = (time.perf_counter() - started) / ALONE * num_processes
        mean_s = append_s * num_appends / (num_kills + 1)

        def work(process: int) -> int:
            chance = random.Random(seed + process)
            delays = [chance.uniform(0, 2 * mean_s) for _ in range(num_kills)]
            return append_with_kills(pattern, process, num_appends, delays)

        started = time.perf_counter()
        with ThreadPoolExecutor(num_processes) as pool:
            killed = sum(pool.map(work, range(1, num_processes + 1)))
        seconds = time.perf_counter() - started
        Roxxel(pattern).remove_leftovers()
        found = check(pattern, num_processes)
        _campaign.check_clean(Roxxel(pattern))
    print(f"{seconds:.1f} s, {killed} processes killed while they appended")
    print(_campaign.counts_in_words(found))


def append_with_kills(
    pattern: str, process: int, num_appends: int, delays_s: list[float]
) -> int:
    """Run one process until it has tried all its appends; return how often it died."""
    first, killed = 0, 0
    for delay_s in [*delays_s, None]:
        writer = Killed(
            *(__file__, "--append", pattern),
            *map(str, (process, first, num_appends)),
        )
        if delay_s is None:
            writer.end()
        else:
            writer.kill(delay_s)
        path = journal(pattern, process)
        first = (
            max(noted(pattern, process)[TRIED], default=-1) + 1 if path.exists() else 0
        )
        killed += first < num_appends
        if first == num_appends:
            break
    return killed


def check(pattern: str, num_processes: int) -> collections.Counter[str]:
    """Check that the corpus has every finished append, once and in one piece."""
    with Roxxel(pattern, check="blocks") as corpus:
        assert corpus.verify().ok
        groups = [
            (key, list(members))
            for key, members in itertools.groupby(corpus.documents, process_and_number)
        ]
    present = [key for key, _ in groups]
    twice = [key for key, times in collections.Counter(present).items() if times > 1]
    assert not twice, f"appends twice or in several pieces: {twice}"
    for key, members in groups:
        right = documents(*key)
        same = len(members) == len(right) and all(map(np.array_equal, members, right))
        assert same, f"append {key} is not whole"
    found: collections.Counter[str] = collections.Counter()
    for process in range(1, num_processes + 1):
        numbers = [number for other, number in present if other == process]
        assert numbers == sorted(numbers), f"appends of process {process} out of order"
        tried, done = noted(pattern, process).values()
        lost = done - {*numbers}
        assert not lost, f"acknowledged appends of process {process} are lost: {lost}"
        unknown = {*numbers} - tried
        assert not unknown, f"appends that no process tried: {unknown}"
        found["acknowledged and there"] += len(done)
        found["killed before the acknowledgement, there"] += len({*numbers} - done)
        found["killed before the acknowledgement, not there"] += len(
            tried - done - {*numbers}
        )
    assert [number for process, number in present if not process] == [*range(ALONE)]
    return found


def process_and_number(document: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the append to which a document belongs."""
    return int(document[0]), int(document[1])


if __name__ == "__main__":
    main()
