"""Reads mutated shards; each must give exactly the original tokens, or a ShardError.

The mutations are flipped bits, truncations, overwritten and swapped ranges, exchanged
sections, two spliced shards, and huge counts with correct checksums, as an attacker
could make them. Each file is read with `check="blocks"` by all methods of reading, in
this process, so a crash ends the campaign. The peak of memory may grow by 64 MiB. A
failure names its seed.

    python tests-integration/benchmarks/format_fuzz.py                  # 2000 files
    python tests-integration/benchmarks/format_fuzz.py --files 100000   # the campaign
"""

from __future__ import annotations

import argparse
import collections
import random
import resource
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_format import Roxxel, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

HUGE = (2**63 - 1, 2**63, 2**64 - 1, 2**32, 2**31, 2**40, 2**48)
LIMIT_MIB = 64


def main() -> None:
    command(__doc__, run, 2000)


def command(
    description: str | None,
    run: Callable[[Path, int, int], collections.Counter[str]],
    num_files: int,
) -> None:
    """Parse the arguments of a fuzzer, run it, and print the count of each outcome."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--files", type=int, default=num_files)
    parser.add_argument("--seed", type=int, help="default: a new one")
    parser.add_argument("--folder", type=Path, help="best in memory, as /dev/shm")
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = run(Path(folder), options.files, seed)
    print("\n".join(f"{kind}: {count}" for kind, count in sorted(found.items())))


def run(folder: Path, num_files: int, seed: int) -> collections.Counter[str]:
    """Mutate and read; return how many of each kind were refused or read right."""
    rng = np.random.default_rng(1)
    shards: list[tuple[bytes, list[Any]]] = []
    for number, lengths in enumerate(([300, 0, 777], [5], [2000, 1, 1])):
        path = folder / f"whole_{number}.rox"
        documents = [rng.integers(0, 60_000, n, np.uint16) for n in lengths]
        Roxxel(path).write(documents, separator=7, block_size=512)
        shards.append((path.read_bytes(), documents))
    path = folder / "mutated.rox"
    check(path, *shards[0], whole=True)
    before = peak_mib()
    started = time.perf_counter()
    found: collections.Counter[str] = collections.Counter()
    for number in range(seed, seed + num_files):
        chance = random.Random(number)
        data, documents = chance.choice(shards)
        kind = chance.choice(KINDS)
        mutated = kind(data, chance, [each for each, _ in shards])
        try:
            outcome = check(path, mutated, documents, whole=mutated == data)
        except BaseException:
            print(f"seed {number}, {kind.__name__}", file=sys.stderr)
            raise
        found[f"{kind.__name__} {outcome}"] += 1
    grown = peak_mib() - before
    print(
        f"{num_files} files from seed {seed} in {time.perf_counter() - started:.0f} s, "
        f"peak of memory {grown:.1f} MiB more"
    )
    assert grown < LIMIT_MIB, f"{grown} MiB"
    return found


def check(path: Path, data: bytes, documents: list[Any], *, whole: bool) -> str:
    """Read a file in every way. Each read must be right, or raise ShardError."""
    path.write_bytes(data)
    separator = np.array([7], np.uint16)
    line = np.concatenate([part for each in documents for part in (each, separator)])
    corpus = Roxxel(path, check="blocks")
    ways: tuple[Callable[[], Any], ...] = (
        lambda: np.array_equal(corpus.tokens[:], line),
        lambda: np.array_equal(corpus.read([1], len(line) - 1)[0], line[1:]),
        lambda: all(
            np.array_equal(ours, theirs)
            for ours, theirs in zip(corpus.documents, documents, strict=True)
        ),
        lambda: np.array_equal(
            corpus.document_spans(0, len(line))[:, 2],
            np.cumsum([len(each) + 1 for each in documents]),
        ),
        # Only a forged range lets tokens into a type that does not hold them.
        lambda: np.array_equal(corpus.read([0], len(line), np.int64)[0], line),
        lambda: corpus.metadata["separator"] == [7],
        lambda: corpus.tokenizer is None,
        lambda: corpus.verify().ok or not whole,
    )
    refused = 0
    for way in ways:
        try:
            assert way(), "read something else than was written"
        except ShardError:
            refused += 1
    assert not (refused and whole), "refused a whole shard"
    return "refused" if refused else "right"


def flip_bits(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        bit = chance.randrange(len(data) * 8)
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def truncate(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    return data[: chance.randrange(len(data))]


def extend(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    return data + chance.randbytes(chance.choice((1, 8, 256, 4096)))


def cut_out(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + data[start + chance.choice((1, 4, 512, 4096)) :]


def overwrite(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    start = chance.randrange(len(data))
    length = chance.choice((1, 4, 8, 512))
    new = chance.choice((bytes(length), b"\xff" * length, chance.randbytes(length)))
    return (data[:start] + new + data[start + length :])[: len(data)]


def swap(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    length = chance.choice((4, 8, 512))
    a, b = sorted(chance.sample(range(0, len(data) - length, length), 2))
    middle = data[a + length : b]
    first, second = data[a : a + length], data[b : b + length]
    return data[:a] + second + middle + first + data[b + length :]


def swap_sections(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Exchange sections, and leave the offsets in the foot as they were."""
    fields = struct.unpack_from("<8Q", data, len(data) - 256 + 48)
    spans = zip(fields[::2], fields[1::2], strict=True)
    sections = [data[at : at + size] for at, size in spans]
    chance.shuffle(sections)
    return data[:4096] + b"".join(sections) + data[-256:]


def splice(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """Join the front of one file and the end of another."""
    other = chance.choice(others)
    return data[: chance.randrange(len(data))] + other[chance.randrange(len(other)) :]


def lie_in_foot(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Change fields of the foot, and seal the foot again."""
    foot = bytearray(data[-256:])
    for _ in range(chance.choice((1, 2, 3))):
        at = chance.choice((8, 16, 24, 32, *range(48, 120, 8)))
        value = struct.unpack_from("<Q", foot, at)[0]
        new = chance.choice((*HUGE, 0, 1, value + 1, value - 1, value * 2, value + 512))
        struct.pack_into("<Q", foot, at, new % 2**64)
    struct.pack_into("<I", foot, 244, zlib.crc32(foot[:244]))
    return data[:-256] + bytes(foot)


def lie_of_values(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Declare another least and greatest token, and correct the checksum."""
    foot = bytearray(data[-256:])
    low, high = sorted(chance.choices((0, 1, 7, 100, 2**15 - 1, 2**15, 2**16 - 1), k=2))
    struct.pack_into("<QQ", foot, 24, low, high)
    struct.pack_into("<I", foot, 244, zlib.crc32(foot[:244]))
    return data[:-256] + bytes(foot)


def lie_in_head(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Change a field of the head, and correct all checksums that cover it."""
    head, foot = bytearray(data[:4096]), bytearray(data[-256:])
    at = chance.choice((8, 12, 16, 20, 32, 36, 44, 4000))
    new = chance.choice((*HUGE, 0, 1, 2, 4, 512, 1024, 8192, 2**24, 0x38746E69))
    struct.pack_into("<I", head, at, new % 2**32)
    struct.pack_into("<I", head, 4092, zlib.crc32(head[:4092]))
    foot[4:8] = head[4092:]
    struct.pack_into("<I", foot, 244, zlib.crc32(foot[:244]))
    return bytes(head) + data[4096:-256] + bytes(foot)


def lie_in_ends(data: bytes, chance: random.Random, _others: list[bytes]) -> bytes:
    """Change the ends of documents, and correct the checksums."""
    foot = bytearray(data[-256:])
    fields = struct.unpack_from("<8Q", foot, 48)
    ends_at, ends_size, sums_at, sums_size = fields[2:6]
    changed = bytearray(data[:-256])
    at = ends_at + 8 * chance.randrange(ends_size // 8)
    struct.pack_into("<Q", changed, at, chance.choice(HUGE))
    crc = zlib.crc32(changed[ends_at : ends_at + ends_size])
    struct.pack_into("<I", changed, sums_at + sums_size - 4, crc)
    crc = zlib.crc32(changed[sums_at : sums_at + sums_size])
    struct.pack_into("<I", foot, 120, crc)
    struct.pack_into("<I", foot, 244, zlib.crc32(foot[:244]))
    return bytes(changed + foot)


KINDS = (
    flip_bits,
    truncate,
    extend,
    cut_out,
    overwrite,
    swap,
    swap_sections,
    splice,
    lie_in_foot,
    lie_of_values,
    lie_in_head,
    lie_in_ends,
)


def peak_mib() -> float:
    """Return the peak of this process's memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


if __name__ == "__main__":
    main()
