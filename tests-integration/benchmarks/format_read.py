"""Measures `Roxxel.read` from warm pages against numpy's own gather of the windows.

- One shard: against `sliding_window_view(tokens, T)[starts]`, cast to int32.
- Many shards: against a loop that copies and casts row by row.
- Boundaries: many shards with a boundary in every tenth window, against the same
  windows moved away from the boundaries.

Rounds of both alternate. The result is the median of the ratios of neighbouring rounds,
in CPU seconds of the thread, so other work on the machine affects both.

    python tests-integration/benchmarks/format_read.py             # small
    python tests-integration/benchmarks/format_read.py --mib 1024  # as in the figures
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
from numpy.lib.stride_tricks import sliding_window_view
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((16, 1025), (64, 2049), (1, 32769))
NUM_SHARDS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=32, help="size of the corpus")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="keep the corpora here")
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        run(options.folder or Path(temporary), options.mib, options.rounds)


def run(folder: Path, mib: int, rounds: int) -> None:
    """Write the corpora, measure, print."""
    one, many = write_corpora(folder, mib)
    warm = int(one.tokens[:].sum()) + sum(int(many[i].sum()) for i in range(len(many)))
    print(f"uint16 to int32, {mib} MiB in 1 and {many.num_shards} shards (sum {warm})")
    print(f"{'windows':>12} {'shards':>7} {'Mtok/s':>8} {'numpy':>8} {'ratio':>6}")
    for count, length in SHAPES:
        starts = make_starts(one.num_tokens, count, length)
        windows = np.asarray(one.tokens[:])
        report(
            (count, length, "1"),
            compare(
                lambda s, n=length: one.read(s, n, np.int32),
                lambda s, n=length, w=windows: sliding_window_view(w, n)[s].astype(
                    np.int32
                ),
                starts,
                rounds,
            ),
        )
    for count, length in SHAPES:
        report((count, length, "many"), many_shards(many, count, length, rounds))
    for count, length in SHAPES[:2]:
        report((count, length, "bounds"), boundaries(many, count, length, rounds))


def write_corpora(folder: Path, mib: int) -> tuple[Roxxel, Roxxel]:
    """Return the same tokens in one shard and in 64."""
    rng = np.random.default_rng(0)
    pieces = 64
    size = mib * 2**19 // pieces
    documents = (rng.integers(0, 50_000, size, np.uint16) for _ in range(pieces))
    one, many = Roxxel(folder / "one.rox"), Roxxel(folder / "many_*.rox")
    one.write(documents, dtype="uint16")
    limit = size * 2 + size // 400 + 24_000
    many.write(one.documents, dtype="uint16", max_shard_bytes=limit)
    return one, many


def make_starts(num_tokens: int, count: int, length: int) -> list[Any]:
    """Return the starts of some batches, at random."""
    rng = np.random.default_rng(1)
    return [rng.integers(0, num_tokens - length + 1, count) for _ in range(200)]


def many_shards(
    many: Roxxel, count: int, length: int, rounds: int
) -> tuple[float, float, float]:
    """Compare with a loop over rows, none of which crosses shards."""
    arrays, bounds = shard_arrays(many)
    rng = np.random.default_rng(2)
    batches: list[Any] = []
    for _ in range(200):
        shards = rng.integers(0, len(arrays), count)
        room = np.array([len(arrays[s]) - length for s in shards])
        batches.append(bounds[shards] + (rng.random(count) * room).astype(np.int64))

    def loop(starts: Any) -> Any:
        out = np.empty((count, length), np.int32)
        shards = np.searchsorted(bounds, starts, "right") - 1
        for row, (shard, start) in enumerate(zip(shards, starts, strict=True)):
            begin = start - bounds[shard]
            out[row] = arrays[shard][begin : begin + length]
        return out

    return compare(lambda s: many.read(s, length, np.int32), loop, batches, rounds)


def boundaries(
    many: Roxxel, count: int, length: int, rounds: int
) -> tuple[float, float, float]:
    """Compare batches in which a tenth of the windows cross shards with others."""
    _, bounds = shard_arrays(many)
    rng = np.random.default_rng(3)
    inside: list[Any] = []
    across: list[Any] = []
    for batch in range(200):
        shards = rng.integers(0, len(bounds) - 2, count)
        room = bounds[shards + 1] - bounds[shards] - length
        starts = bounds[shards] + (rng.random(count) * room).astype(np.int64)
        inside.append(starts)
        moved = starts.copy()
        tenth = np.flatnonzero((np.arange(count) + batch * count) % 10 == 0)
        moved[tenth] = bounds[shards[tenth] + 1] - length // 2
        across.append(moved)
    pairs = list(zip(across, inside, strict=True))
    return compare(
        lambda pair: many.read(pair[0], length, np.int32),
        lambda pair: many.read(pair[1], length, np.int32),
        pairs,
        rounds,
    )


def shard_arrays(many: Roxxel) -> tuple[list[Any], Any]:
    """Return a plain array of each shard, and the index of its first token."""
    arrays: list[Any] = []
    bounds = [0]
    for path in many.paths:
        arrays.append(np.asarray(Roxxel(path).tokens[:]))
        bounds.append(bounds[-1] + len(arrays[-1]))
    return arrays, np.array(bounds)


def compare(
    ours: Callable[[Any], Any],
    theirs: Callable[[Any], Any],
    batches: list[Any],
    rounds: int,
) -> tuple[float, float, float]:
    """Return tokens per second of both, and the median ratio of neighbouring rounds."""
    size = ours(batches[0]).size
    assert np.array_equal(ours(batches[0]), theirs(batches[0])) or isinstance(
        batches[0], tuple
    )
    times: list[tuple[float, float]] = []
    for _ in range(rounds):
        pair: list[float] = []
        for function in (ours, theirs):
            started = time.thread_time()
            for batch in batches:
                function(batch)
            pair.append(time.thread_time() - started)
        times.append((pair[0], pair[1]))
    total = size * len(batches)
    ratio = statistics.median(other / own for own, other in times)
    own = total / statistics.median(own for own, _ in times)
    other = total / statistics.median(other for _, other in times)
    return own, other, ratio


def report(what: tuple[int, int, str], figures: tuple[float, float, float]) -> None:
    """Print one line."""
    own, other, ratio = figures
    shape = f"{what[0]}x{what[1]}"
    print(f"{shape:>12} {what[2]:>7} {own / 1e6:8.0f} {other / 1e6:8.0f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
