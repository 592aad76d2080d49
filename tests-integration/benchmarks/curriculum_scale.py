"""Measures the order of the largest runs that we know of, and prints it as a table.

The run has 200 sources with 2 x 10^13 tokens in total, 20 phases, batches of 8 192 x 4
097 tokens, and 1 024 hosts. One processor measures the time to declare and plan the
run, to find and assemble a host's rows of any step, and to resume. A host does not
compute more if the run has more hosts. Tokens are computed from their positions, so no
disk is measured. In the count of opened files, each corpus has 8 shards.

    python tests-integration/benchmarks/curriculum_scale.py [--rounds 50]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.share import Share
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roxxel_curriculum import Location, Occurrence

Result = TypeVar("Result")

DOCUMENT = 1000
SHARDS = 8


@dataclass(frozen=True)
class Size:
    """The size of a run; its tokens are the tokens of all sources in total."""

    sources: int = 200
    phases: int = 20
    tokens: int = 2 * 10**13
    batch_size: int = 8192
    seq_len: int = 4097
    hosts: int = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    print()
    size = Size()
    with tempfile.TemporaryDirectory() as folder:
        print(table(size, options.rounds, Path(folder)))


def table(size: Size, rounds: int, folder: Path) -> str:
    """Return the figures of a run as rows of Markdown."""
    digit, exponent = f"{size.tokens:.0e}".split("e+")
    tokens = f"{digit} x 10^{int(exponent)} tokens"
    head = f"{size.sources} sources, {size.phases} phases, {tokens}"
    lines = [
        f"| {head}, {size.hosts:,} hosts | |",
        "| --- | --- |",
        *(f"| {what} | {figure} |" for what, figure in figures(size, rounds, folder)),
    ]
    return "\n".join(lines)


def figures(size: Size, rounds: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what was measured, and the figure; times are CPU times of one processor."""
    readers = {
        f"s{index}": PositionReader(
            size.tokens // size.sources, f"s{index}", document_tokens=DOCUMENT
        )
        for index in range(1, size.sources)
    }
    first = PositionReader(size.tokens // size.sources, document_tokens=DOCUMENT)
    curriculum, seconds = timed(
        lambda: Curriculum(first, phases(size, [*readers]), readers)
    )
    yield "declare the run", f"{seconds:.2f} s"
    plan, seconds = timed(lambda: curriculum.plan(seed=0))
    yield f"plan its {plan.total_steps:,} steps", f"{seconds:.2f} s"

    sampler = curriculum.sampler(seed=0)
    random = np.random.default_rng(0)
    steps = random.integers(sampler.total_steps, size=rounds).tolist()
    shares = [
        Share(sampler, host, size.hosts)
        for host in random.integers(size.hosts, size=rounds).tolist()
    ]
    begun = steps[0] // 2
    following = range(begun, begun + rounds)
    next_rows = [timed(partial(shares[0].batch, step)) for step in following]
    shape = " x ".join(map(str, next_rows[0][0].shape))
    what = f"a host's {shape} tokens"
    yield f"{what} of the next step", spread_ms(next_rows)
    rows = [
        timed(partial(share.batch, step))
        for share, step in zip(shares, steps, strict=True)
    ]
    yield f"{what} of any step, as after a resume", spread_ms(rows)
    found = [timed(partial(sampler.locate, step, 0)) for step in steps]
    yield "what a row of any step has read", spread_ms(found)

    def where(place: Location) -> list[Occurrence]:
        return list(sampler.where(place.source, place.start, place.start + DOCUMENT))

    seen = [timed(partial(where, place)) for place, _ in found]
    for step, (readings, _) in zip(steps, seen, strict=True):
        assert step in [each.step for each in readings]
    yield f"which steps read {DOCUMENT} tokens", spread_ms(seen)
    state = sampler.state(begun)
    num_kb = len(json.dumps(state)) / 1000
    yield "what a checkpoint holds of the data", f"{num_kb:.0f} KB"
    _, seconds = timed(lambda: sampler.check(state))
    yield "compare it with the data of a resumed run", f"{seconds * 1e3:.1f} ms"
    yield (
        f"files of a corpus of {SHARDS} shards opened before the first step",
        opened(size.sources, folder),
    )


def phases(size: Size, others: list[str]) -> list[Phase]:
    """Return phases that read all tokens about once, each with another blend."""
    steps = size.tokens // size.phases // size.batch_size // size.seq_len
    random = np.random.default_rng(0)
    blends = random.uniform(0.9, 1.1, (size.phases, size.sources)).tolist()
    names = ["self", *others]
    return [
        Phase(
            steps, size.batch_size, size.seq_len, dict(zip(names, blend, strict=True))
        )
        for blend in blends
    ]


def timed(act: Callable[[], Result]) -> tuple[Result, float]:
    """Return a result, and its CPU time in seconds."""
    started = time.thread_time()
    result = act()
    return result, time.thread_time() - started


def spread_ms(results: list[tuple[Result, float]]) -> str:
    values = [seconds * 1e3 for _, seconds in results]
    return f"{statistics.median(values):.1f} ms (at most {max(values):.1f})"


def opened(sources: int, folder: Path) -> str:
    """Return how many files of each corpus planning a run opens."""
    patterns = [folder / f"s{index}_*.rox" for index in range(sources)]
    tokens = np.arange(8000, dtype=np.uint16)
    for pattern in patterns:
        # A second document does not fit into a shard.
        Roxxel(pattern).write(
            [tokens] * SHARDS, vocab_size=8000, max_shard_bytes=30_000
        )
        assert len([*folder.glob(pattern.name)]) == SHARDS
    paths: set[str] = set()
    is_watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            is_watching
            and event == "open"
            and str(arguments[0]).startswith(str(folder))
        ):
            paths.add(str(arguments[0]))

    sys.addaudithook(watch)
    first, *others = (Roxxel(pattern) for pattern in patterns)
    mix = {f"s{index}": corpus for index, corpus in enumerate(others, 1)}
    weights = dict.fromkeys(["self", *mix], 1.0)
    Curriculum(first, [Phase(2, sources, 65, weights)], mix).plan(seed=0)
    is_watching = False
    return f"{len(paths) / sources:g}"


if __name__ == "__main__":
    main()
