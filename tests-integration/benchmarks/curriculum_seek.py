"""Measures the first batch at 90 % of a run over 10 TB, against the first at step 0.

The corpus is four sparse shards of uint16 zeros. They pass every check of the format,
but have hardly any pages on the disk. Each measurement opens the corpus, declares the
curriculum and reads a batch of 16x1025, so only the caches of the operating system are
warm. The two measurements alternate.

    python tests-integration/benchmarks/curriculum_seek.py [--tb 10] [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_format._read.contents import file_contents, joined
from roxxel_format._spec.manifest_file import pack_manifest

sys.path.append(str(Path(__file__).parent))
from format_open import write_sparse_shard

NUM_SHARDS = 4
BLOCK_SIZE = 2**24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tb", type=float, default=10, help="terabytes of the corpus")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        num_tokens = int(options.tb * 10**12 / 2 / NUM_SHARDS)
        compare(write_sparse(Path(folder), NUM_SHARDS, num_tokens), options.rounds)


def write_sparse(folder: Path, num_shards: int, num_tokens: int) -> str:
    """Write sparse shards and their manifest; return the pattern of the corpus."""
    shards = [folder / f"sparse_{number:05}.rox" for number in range(num_shards)]
    for path in shards:
        write_sparse_shard(path, num_tokens, BLOCK_SIZE)
    # `adopt` would read the zeros.
    paths = [*map(str, shards)]
    manifest = joined(tuple(paths), [*map(file_contents, paths)]).manifest
    (folder / "sparse_manifest.json").write_bytes(pack_manifest(manifest))
    return f"{folder}/sparse_*.rox"


def compare(pattern: str, rounds: int) -> None:
    """Print both times, their difference, and the memory that a measurement takes."""
    with Roxxel(pattern) as corpus:
        steps = corpus.num_tokens // 1025 // 16 * 99 // 100
        print(f"{corpus.num_tokens:.2e} tokens in {corpus.num_shards} shards")
    at_start: list[float] = []
    at_90: list[float] = []
    more: list[float] = []
    late = steps * 9 // 10
    first_batch_ms(pattern, steps, late)  # imports and caches
    for number in range(rounds):
        # Whichever comes first in a round finds the caches colder: take turns.
        times = {
            step: first_batch_ms(pattern, steps, step)
            for step in ((0, late), (late, 0))[number % 2]
        }
        at_start.append(times[0])
        at_90.append(times[late])
        more.append(times[late] - times[0])
    print(
        f"first batch at step 0 {statistics.median(at_start):.2f} ms, at the 90 % "
        f"point {statistics.median(at_90):.2f} ms, difference in turn "
        f"{statistics.median(more):+.2f} ms (target: within 2)"
    )
    tracemalloc.start()
    first_batch_ms(pattern, steps, late)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"memory at most {peak >> 10} KiB")


def first_batch_ms(pattern: str, steps: int, step: int) -> float:
    """Return milliseconds from opening the corpus to a batch."""
    started = time.perf_counter()
    with Roxxel(pattern) as corpus:
        curriculum = Curriculum(corpus, [Phase(steps, 16, 1025)], longest=32769)
        curriculum.sampler(1).batch(step)
        return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    main()
