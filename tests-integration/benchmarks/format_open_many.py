"""Measures opening a corpus with a manifest: 100 000 shards, and one shard of 1 GiB.

The manifest of the many shards repeats the row of one real shard. Only the last shard
exists, because opening must not touch any. Goals: 100 000 shards open in under 1 s; a
corpus of 1 GiB opens and gives its first batch of 16x1025 in at most 3 ms.
(`compare.py` compares the first batch with grain and other peers.)

    python tests-integration/benchmarks/format_open_many.py       # 2000 shards, 8 MiB
    python tests-integration/benchmarks/format_open_many.py --shards 100000 --mib 1024
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel

DOCUMENT = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        open_many(Path(folder), options.shards, options.rounds)
        first_batch(Path(folder), options.mib, options.rounds)


def open_many(folder: Path, num_shards: int, rounds: int) -> None:
    """Measure opening, and the first read at the far end."""
    pattern = f"{folder}/many_*.rox"
    Roxxel(pattern).write([np.arange(50_000, dtype=np.uint16)])
    repeat_shard(folder / "many_manifest.json", num_shards)
    opened: list[float] = []
    read: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        corpus = Roxxel(pattern)
        num_tokens = corpus.num_tokens
        opened.append(time.perf_counter() - started)
        started = time.perf_counter()
        window = corpus.read([num_tokens - 2049], 2049, np.int32)
        read.append(time.perf_counter() - started)
        assert window[0, -1] == 49_999
        assert corpus.num_shards == num_shards
        corpus.close()
    print(
        f"{num_shards} shards: open {in_ms(opened)} (goal for 100 000: 1000 ms), first "
        f"read at the far end {in_ms(read)}"
    )


def repeat_shard(manifest: Path, num_shards: int) -> None:
    """Turn the manifest of one shard into one of many; link the last shard."""
    table: dict[str, Any] = json.loads(manifest.read_bytes())
    del table["crc32"]
    [part] = table["parts"]
    shards, versions = part["shards"], part["versions"]
    [name] = shards["names"]
    names = [f"many_{number:06d}.rox" for number in range(num_shards)]
    for key, values in shards.items():
        shards[key] = names if key == "names" else values * num_shards
    contents = bytes.fromhex("".join(shards["content_digests"]))
    part["digest"] = blake2b(contents, digest_size=16).hexdigest()
    for key in ("tokens", "documents"):
        versions[key] = [versions[key][0] * num_shards]
    body = json.dumps(table, ensure_ascii=False, separators=(",", ":"))[:-1].encode()
    manifest.write_bytes(body + b',"crc32":"%08x"}\n' % zlib.crc32(body))
    (manifest.parent / name).rename(manifest.parent / names[-1])
    print(f"the manifest has {manifest.stat().st_size / 1e6:.1f} MB")


def first_batch(folder: Path, mib: int, rounds: int) -> None:
    """Measure opening a corpus of one shard with a curriculum's first batch."""
    pattern = f"{folder}/one_*.rox"
    tokens = np.random.default_rng(0).integers(0, 50_000, DOCUMENT, np.uint16)
    count = mib * 2**19 // DOCUMENT
    Roxxel(pattern).write((tokens for _ in range(count)), vocab_size=50_000)
    taken: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        with Roxxel(pattern) as corpus:
            curriculum = Curriculum(corpus, [Phase(4, 16, 1025)])
            batch = curriculum.sampler(0).batch(0)
            taken.append(time.perf_counter() - started)
        assert batch.shape == (16, 1025)
    print(
        f"{mib} MiB in one shard: open and first batch of 16x1025 {in_ms(taken)} (goal "
        f"for 1 GiB: 3 ms), the first time {taken[0] * 1e3:.2f} ms"
    )


def in_ms(seconds: list[float]) -> str:
    """Return median and range in milliseconds."""
    middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return f"{middle * 1e3:.2f} ms ({low * 1e3:.2f} to {high * 1e3:.2f})"


if __name__ == "__main__":
    main()
