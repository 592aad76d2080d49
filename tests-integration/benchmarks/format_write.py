"""Measures writing documents of 1000 tokens against `file.write` and `zlib.crc32`.

`Roxxel.write` and a plain loop write the same bytes; the loop writes each document and
updates its checksum. Both flush to the disk. Rounds of both alternate, and the result
is the median of the ratios of neighbouring rounds. The program also prints the disk
space of the corpus beyond tokens, document ends and checksums.

    python tests-integration/benchmarks/format_write.py              # small
    python tests-integration/benchmarks/format_write.py --mib 512    # as in the figures
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for dtype in ("uint16", "int64"):
            run(Path(folder), options.mib, options.rounds, dtype)


def run(folder: Path, mib: int, rounds: int, dtype: str) -> None:
    """Measure documents of one dtype, stored as uint16, and print."""
    count = mib * 2**19 // LENGTH
    tokens = np.random.default_rng(0).integers(0, 50_000, (64, LENGTH)).astype(dtype)

    def documents() -> Iterator[Any]:
        for number in range(count):
            yield tokens[number % 64]

    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        ours.append(write_corpus(folder, documents()))
        theirs.append(write_plain(folder, documents()))
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    total = count * LENGTH / 1e6
    print(
        f"{dtype} documents of {LENGTH} as uint16, {mib} MiB: "
        f"{total / statistics.median(ours):.0f} Mtok/s, plain "
        f"{total / statistics.median(theirs):.0f}, ratio {ratio:.2f}"
    )
    size = (folder / "ours.rox").stat().st_size
    rest = size - count * (LENGTH * 2 + 8) - -(-count * LENGTH * 2 // 4096) * 4
    print(f"  on disk beyond tokens, ends and checksums: {rest} bytes in one shard")


def write_corpus(folder: Path, documents: Iterator[Any]) -> float:
    """Return the seconds that writing takes."""
    started = time.perf_counter()
    corpus = Roxxel(folder / "ours.rox")
    corpus.write(documents, dtype="uint16", exist="replace")
    return time.perf_counter() - started


def write_plain(folder: Path, documents: Iterator[Any]) -> float:
    """Return the seconds that a plain loop takes."""
    started = time.perf_counter()
    crc = 0
    with (folder / "plain.bin").open("wb") as file:
        for document in documents:
            data = document.astype(np.uint16, copy=False).data
            file.write(data)
            crc = zlib.crc32(data, crc)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
