"""Measures `Sampler.where` for one document, against one cold `locate`.

The run has 5 sources of 10**8, 10**10 or 10**13 tokens, and 3 phases of different
lengths. `where` finds every row that reads a document of 1000 tokens. For comparison,
`locate` finds the window of one row. The limit of `where` is 10 ms. No token is read.

    python tests-integration/benchmarks/curriculum_where.py [--rounds 50]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time

import numpy as np
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_curriculum.testing import PositionReader

SIZES: tuple[int, ...] = (10**8, 10**10, 10**13)
DOCUMENT = 1000
LIMIT_MS = 10
WEIGHTS = {"self": 0.5, "a": 0.2, "b": 0.1, "c": 0.1, "d": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    compare(options.rounds)


def sampler_of(num_tokens: int) -> Sampler:
    """Return a run that reads the primary about once."""
    third = num_tokens * 2 // 3 // 64
    phases = [
        Phase(third // seq_len, 64, seq_len, WEIGHTS) for seq_len in (257, 1025, 4097)
    ]
    mix = {name: PositionReader(num_tokens, name) for name in WEIGHTS if name != "self"}
    curriculum = Curriculum(
        PositionReader(num_tokens, document_tokens=DOCUMENT), phases, mix, longest=8193
    )
    return curriculum.sampler(1)


def compare(rounds: int) -> None:
    """Print milliseconds of `where` and of `locate` for each size, measured in turn."""
    samplers = {size: sampler_of(size) for size in SIZES}
    where_ms: dict[int, list[float]] = {size: [] for size in SIZES}
    locate_ms: dict[int, list[float]] = {size: [] for size in SIZES}
    found: dict[int, int] = dict.fromkeys(SIZES, 0)
    random = np.random.default_rng(0)
    for _ in range(rounds):
        for size, sampler in samplers.items():
            document = int(random.integers(size // DOCUMENT))
            start = document * DOCUMENT
            started = time.thread_time()
            results = list(sampler.where("self", start, start + DOCUMENT))
            where_ms[size].append((time.thread_time() - started) * 1e3)
            found[size] += len(results)
            step = int(random.integers(sampler.total_steps))
            started = time.thread_time()
            sampler.locate(step, 0)
            locate_ms[size].append((time.thread_time() - started) * 1e3)
    for size in SIZES:
        ours, peer = (
            statistics.median(where_ms[size]),
            statistics.median(locate_ms[size]),
        )
        print(
            f"{size:.0e} tokens: where {ours:.2f} ms a document "
            f"({found[size] / rounds:.1f} rows), {ours / LIMIT_MS:.2f} of the limit of "
            f"{LIMIT_MS} ms; longest {max(where_ms[size]):.2f} ms; "
            f"{ours / peer:.1f} times a cold locate ({peer:.2f} ms)"
        )


if __name__ == "__main__":
    main()
