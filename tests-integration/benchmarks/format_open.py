"""Measures opening a corpus of many large shards, and a first read near its end.

The shards are hard links to one sparse file: by default 200 shards of 1 MiB; for the
published figures 10 000 shards of 1 GiB, 10 TB in all. The memory is the private memory
of the process (`/proc/self/smaps_rollup`), before and after.

    python tests-integration/benchmarks/format_open.py
    python tests-integration/benchmarks/format_open.py --shards 10000 --mib 1024
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
from roxxel_format import Roxxel
from roxxel_format._read.contents import file_contents, joined
from roxxel_format._spec.layout import Head, Layout, digests
from roxxel_format._spec.manifest_file import pack_manifest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--mib", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, numpy {np.__version__}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make(Path(folder), options.shards, options.mib)
        for _ in range(3):
            run(Path(folder))


def make(folder: Path, num_shards: int, mib: int) -> None:
    """Write one sparse shard of zeros, and link it under many names."""
    first = folder / "s_00000.rox"
    write_sparse_shard(first, mib * 2**19)
    for number in range(1, num_shards):
        os.link(first, folder / f"s_{number:05d}.rox")
    # `adopt` would read the zeros.
    shards = sorted(folder.glob("s_*.rox"))
    paths = [*map(str, shards)]
    manifest = joined(tuple(paths), [*map(file_contents, paths)]).manifest
    (folder / "s_manifest.json").write_bytes(pack_manifest(manifest))


def write_sparse_shard(path: Path, num_tokens: int, block_size: int = 4096) -> None:
    """Write a shard of one document of uint16 zeros, without writing the zeros."""
    head = Head("uint16", block_size, 0)
    ends = np.array([num_tokens], "<u8").tobytes()
    num_blocks = -(-num_tokens * 2 // block_size)
    checksums = np.full(num_blocks + 1, zlib.crc32(bytes(block_size)), "<u4")
    checksums[-1] = zlib.crc32(ends)
    layout = Layout(
        head=head,
        num_tokens=num_tokens,
        num_documents=1,
        min_value=0,
        max_value=0,
        metadata_size=2,
        checksums_crc=zlib.crc32(checksums.tobytes()),
        metadata_crc=zlib.crc32(b"{}"),
    )
    content, whole = digests(
        layout, head.to_bytes(), [ends], checksums.tobytes(), b"{}"
    )
    layout = replace(layout, content_digest=content, digest=whole)
    with path.open("wb") as file:
        file.write(head.to_bytes())
        file.seek(layout.sections.documents)
        file.write(
            ends + checksums.tobytes() + b"{}" + layout.pack_foot(head.to_bytes())
        )


def run(folder: Path) -> None:
    """Open the corpus, read at its end, and print."""
    before = private_mib()
    started = time.perf_counter()
    corpus = Roxxel(folder)
    num_tokens = corpus.num_tokens
    opened = time.perf_counter() - started
    started = time.perf_counter()
    batch = corpus.read([num_tokens - 2049], 2049, np.int32)
    first = time.perf_counter() - started
    started = time.perf_counter()
    corpus.read([num_tokens // 2], 2049, np.int32)
    second = time.perf_counter() - started
    assert batch.shape == (1, 2049)
    print(
        f"{corpus.num_shards} shards, {num_tokens * 2 / 1e12:.3f} TB: open "
        f"{opened:.2f} s, first read at the far end {first * 1e3:.2f} ms, another "
        f"elsewhere {second * 1e3:.2f} ms, private memory "
        f"{private_mib() - before:.1f} MiB more"
    )


def private_mib() -> float:
    """Return the private memory of this process."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    sizes = [int(line.split()[1]) for line in text.splitlines() if "Private" in line]
    return sum(sizes) / 1024


if __name__ == "__main__":
    main()
