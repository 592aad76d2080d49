"""Measures `batch(step)` and its parts, against a bare `read` of the same windows.

The bare read is the least work that a batch needs: the windows are known in advance,
and one `read` of each source fills part of an int32 array. Both are timed in turn, over
groups of consecutive steps. A group is a whole block of computed positions, so the time
of `batch` includes all index arithmetic. The ratio is the median over the groups. Times
are CPU times, so other work on the machine does not count.

Then it measures the same tokens in one source, in five and in 200, in turn: the cost of
a batch with more sources, and with the fields that depend on documents. Here the least
time over the rounds counts, because other work on the machine slows all of them alike.

    python tests-integration/benchmarks/curriculum_batch.py [--mib 64] [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

Group = tuple[Roxxel, "npt.NDArray[np.int64]", "npt.NDArray[np.int64]"]

WEIGHTS = {"self": 0.5, "a": 0.2, "b": 0.1, "c": 0.1, "d": 0.1}
FIELDS: dict[str, tuple[Any, ...]] = {
    "tokens": (),
    "segments": ("segment_ids", "positions"),
    "mask": ("loss_mask",),
}
SHAPES = ((5, 64, 1025), (5, 64, 2049), (1, 16, 1025), (1, 64, 2049), (1, 1, 32769))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=8, help="of each of 5 sources")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        corpora = {
            name: write(Path(folder) / f"{name}.rox", options.mib << 20)
            for name in WEIGHTS
        }
        for num_sources, batch_size, seq_len in SHAPES:
            names = list(WEIGHTS)[:num_sources]
            compare({n: corpora[n] for n in names}, batch_size, seq_len, options.rounds)
        for batch_size, seq_len in ((16, 1025), (64, 2049)):
            split(Path(folder), options.mib << 20, batch_size, seq_len, options.rounds)


def split(
    folder: Path,
    num_bytes: int,
    batch_size: int,
    seq_len: int,
    rounds: int,
    counts: Sequence[int] = (1, 5, 200),
) -> None:
    """Print what a batch costs with more sources, and with more fields."""
    steps, samplers = 20, dict[tuple[int, str], Sampler]()
    for count in counts:
        corpora = {
            f"{count}-{at}": write(
                folder / f"{count}-{at}.rox", num_bytes // count, document_tokens=700
            )
            for at in range(count)
        }
        for corpus in corpora.values():
            corpus.tokens[:].max()  # First touch of the pages.
        first, *_ = corpora
        primary = corpora[first]
        curriculum = Curriculum(
            primary,
            [
                Phase(
                    steps * (rounds + 1), batch_size, seq_len, dict.fromkeys(corpora, 1)
                )
            ],
            {name: each for name, each in corpora.items() if name != first},
            policies=dict.fromkeys(corpora, "repeat"),
            primary=first,
        )
        for name, more in FIELDS.items():
            samplers[count, name] = curriculum.sampler(1, fields=("tokens", *more))
    times = {key: [field_us(each, range(steps))] for key, each in samplers.items()}
    for number in range(1, rounds + 1):
        part = range(number * steps, (number + 1) * steps)
        for key, sampler in samplers.items():
            times[key].append(field_us(sampler, part))
    least = {key: min(values[1:]) for key, values in times.items()}
    one = least[counts[0], "tokens"]
    for count in counts:
        tokens = least[count, "tokens"]
        print(
            f"{count:3} sources, {batch_size:3}x{seq_len}: tokens {tokens:6.1f} us, "
            f"{tokens / one:.1f} of one source (target: 4); with "
            f"segments {least[count, 'segments'] / tokens:.1f} of it (target: 3), with "
            f"mask {least[count, 'mask'] / tokens:.1f}"
        )


def field_us(sampler: Sampler, steps: range) -> float:
    """Return microseconds per step of batches whose windows are known."""
    for step in steps:
        sampler.windows(step)
    started = time.thread_time()
    for step in steps:
        sampler.batch(step)
    return (time.thread_time() - started) / len(steps) * 1e6


def write(path: Path, num_bytes: int, document_tokens: int | None = None) -> Roxxel:
    """Return a corpus of random tokens: one document, or several of equal length."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, num_bytes // 2, np.uint16)
    size = document_tokens or tokens.size
    documents = [tokens[at : at + size] for at in range(0, tokens.size, size)]
    Roxxel(path).write(documents, dtype="uint16", exist="replace")
    return Roxxel(path)


def compare(
    corpora: dict[str, Roxxel], batch_size: int, seq_len: int, rounds: int
) -> None:
    """Print the ratio for one shape of batch."""
    stretch = 16384 // batch_size  # so many samples are worked out at a time
    curriculum = Curriculum(
        corpora["self"],
        [Phase(stretch * (rounds + 1), batch_size, seq_len, weights_of(corpora))],
        {name: corpus for name, corpus in corpora.items() if name != "self"},
        policies=dict.fromkeys(corpora, "repeat"),
    )
    sampler = curriculum.sampler(1)
    readers = [corpora[name] for name in sampler.source_names]
    ratios: list[float] = []
    plain_us: list[float] = []
    more_us: list[float] = []
    for number in range(rounds + 1):
        steps = range(number * stretch, (number + 1) * stretch)
        bare = bare_us(sampler, readers, steps)
        ours = batch_us(curriculum, steps)
        if number == 0:
            continue  # first touch of the pages
        ratios.append(ours / bare)
        plain_us.append(bare)
        more_us.append(ours - bare)
    print(
        f"{len(corpora)} sources, {batch_size:3}x{seq_len}: bare read "
        f"{statistics.median(plain_us):6.1f} us, batch {statistics.median(ratios):.2f} "
        f"of it, {statistics.median(more_us):+5.1f} us (target: 1.3 or +10)"
    )


def weights_of(corpora: dict[str, Roxxel]) -> dict[str, float]:
    return {name: WEIGHTS[name] for name in corpora}


def bare_us(sampler: Sampler, readers: list[Roxxel], steps: range) -> float:
    """Return microseconds per step of reading known windows."""
    shape = sampler.shape(steps.start)
    groups: list[list[Group]] = []
    for step in steps:
        windows = sampler.windows(step)
        rows = [np.flatnonzero(windows.source == i) for i in range(len(readers))]
        groups.append(
            [
                (reader, chosen, windows.start[chosen])
                for reader, chosen in zip(readers, rows, strict=True)
                if chosen.size
            ]
        )
    started = time.thread_time()
    for group in groups:
        gather(group, shape)
    return (time.thread_time() - started) / len(groups) * 1e6


def gather(group: list[Group], shape: tuple[int, int]) -> npt.NDArray[Any]:
    if len(group) == 1:
        reader, _, starts = group[0]
        return reader.read(starts, shape[1], dtype=np.int32)
    out = np.empty(shape, np.int32)
    for reader, rows, starts in group:
        out[rows] = reader.read(starts, shape[1])
    return out


def batch_us(curriculum: Curriculum, steps: range) -> float:
    """Return microseconds per step of a fresh sampler's batches."""
    sampler = curriculum.sampler(1)
    if steps.start:
        sampler.windows(steps.start - 1)  # the step before, as in a run
    started = time.thread_time()
    for step in steps:
        sampler.batch(step)
    return (time.thread_time() - started) / len(steps) * 1e6


if __name__ == "__main__":
    main()
