"""Measures the index arithmetic of a step, for small sources and for huge ones.

A step has 64 rows from 5 sources; no token is read. The program measures consecutive
steps (a few thousand, in whole blocks of positions) and a single cold step, in turn for
sources of 10**8 and of 10**13 tokens. Then it measures the construction and the plan of
curricula with many sources or many phases, and the memory of a sampler.

    python tests-integration/benchmarks/curriculum_index.py [--steps 2048] [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZES = (10**8, 10**10, 10**13)
SEQ_LEN = 257  # short, so that 10**8 tokens last for the measurement
PLANS = ((20, 10), (1_000, 10), (20, 1_000), (1, 10_000))
"""Numbers of sources and phases of the curricula to declare and plan."""
WEIGHTS = {"self": 0.5, "a": 0.2, "b": 0.1, "c": 0.1, "d": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=256, help="consecutive steps")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    compare_sizes(options.steps, options.rounds)
    declare_and_plan(options.rounds)
    memory()


def sampler_of(num_tokens: int) -> Sampler:
    curriculum = Curriculum(
        PositionReader(num_tokens, "self"),
        [Phase(10**6, 64, SEQ_LEN, WEIGHTS)],
        {name: PositionReader(num_tokens, name) for name in WEIGHTS if name != "self"},
        longest=32769,
        policies=dict.fromkeys(WEIGHTS, "repeat"),
    )
    return curriculum.sampler(1)


def compare_sizes(steps: int, rounds: int) -> None:
    """Print microseconds per step for each size, measured in turn."""
    consecutive: dict[int, list[float]] = {size: [] for size in SIZES}
    cold: dict[int, list[float]] = {size: [] for size in SIZES}
    for number in range(rounds):
        for size in SIZES:
            sampler = sampler_of(size)
            first = number * steps
            sampler.shape(first)
            sampler.windows(max(first - 1, 0))
            started = time.thread_time()
            for step in range(first, first + steps):
                sampler.windows(step)
            consecutive[size].append((time.thread_time() - started) / steps * 1e6)
            for lone in range(20):
                started = time.thread_time()
                sampler.windows(500_000 + lone * 1000)
                cold[size].append((time.thread_time() - started) * 1e6)
    for size in SIZES:
        ratios = [
            ours / smallest
            for ours, smallest in zip(
                consecutive[size], consecutive[SIZES[0]], strict=True
            )
        ]
        print(
            f"{size:.0e} tokens: {statistics.median(consecutive[size]):6.1f} us a "
            f"consecutive step (best {min(consecutive[size]):.1f}; target 30), "
            f"{statistics.median(ratios):.2f} of that at {SIZES[0]:.0e} (target 1.2); "
            f"a cold step {statistics.median(cold[size]):.0f} us "
            f"(best {min(cold[size]):.0f}; target 1000)"
        )


def declare_and_plan(rounds: int, sizes: Iterable[tuple[int, int]] = PLANS) -> None:
    """Print how long it takes to declare and plan 10**13 tokens, for each size."""
    for num_sources, num_phases in sizes:
        names = [f"s{number:04}" for number in range(num_sources - 1)]
        weights = {"self": 1.0, **{name: 1 + i % 7 for i, name in enumerate(names)}}
        readers = {name: PositionReader(10**9 + i) for i, name in enumerate(names)}
        phases = [
            Phase(
                10**6 // num_phases, 512, 1025 + 512 * (10 * i // num_phases), weights
            )
            for i in range(num_phases)
        ]
        declared: list[float] = []
        planned: list[float] = []
        for _ in range(rounds):
            started = time.thread_time()
            curriculum = Curriculum(
                PositionReader(8 * 10**12),
                phases,
                readers,
                policies=dict.fromkeys(names, "repeat"),
            )
            declared.append(time.thread_time() - started)
            started = time.thread_time()
            str(curriculum.plan(0))
            planned.append(time.thread_time() - started)
        print(
            f"{num_sources} sources, {num_phases} phases: declared in "
            f"{statistics.median(declared) * 1e3:.0f} ms, planned and printed in "
            f"{statistics.median(planned) * 1e3:.0f} ms (target 1000 each)"
        )


def memory() -> None:
    """Print the memory of a sampler in use, for each size."""
    for size in SIZES:
        tracemalloc.start()
        sampler = sampler_of(size)
        for step in range(300):
            sampler.windows(step)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"{size:.0e} tokens: {held >> 10} KiB held, {peak >> 10} KiB at most")


if __name__ == "__main__":
    main()
