"""How Roxxel scales with the size of the corpus, with processes and with sources."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import format_open
import numpy as np
from _adapters import OURS, PeerError
from roxxel_format import Roxxel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from _adapters import Adapter, Crew
    from _report import Record


def measure(crew: Crew, folder: Path, *, full: bool) -> Iterator[Record]:
    """Yield the records of all three: small, or 10 TB, 4 processes and 100 sources.

    It ends at a failure, which the crew records.
    """
    ours = next(adapter for adapter in crew.adapters if adapter.name == OURS)
    try:
        yield from _all(crew, ours, folder, full=full)
    except PeerError as error:
        crew.failed(ours, "scaling", error)


def _all(crew: Crew, ours: Adapter, folder: Path, *, full: bool) -> Iterator[Record]:
    """Yield one record after another."""
    shards = [(1, 1024), (100, 1024), (10_000, 1024)] if full else [(1, 1), (20, 1)]
    counts = [1, 2, 5, 20, 100] if full else [1, 3]
    processes = [1, 2, 3, 4] if full else [1, 2]
    seconds, mib = (1.0, 64) if full else (0.1, 4)
    for number, size in shards:
        yield sparse(crew, ours, folder / f"sparse-{number}", number, size)
    home = folder / "scaling"
    home.mkdir()
    for number in counts:
        yield blend(crew, ours, home, number, mib, seconds)
    for number in processes:
        yield share(crew, ours, home, number, mib, seconds)


def job(sources: list[Record], shape: tuple[int, int]) -> Record:
    """Return the answer of a job."""
    return {
        "sources": sources,
        "dtype": "uint16",
        "batch_size": shape[0],
        "seq_len": shape[1],
    }


def source(folder: Path, num_tokens: int, weight: float = 1.0) -> Record:
    """Return where a corpus lies."""
    return {
        "folder": str(folder),
        "flat": str(folder),
        "num_tokens": num_tokens,
        "weight": weight,
    }


def written(folder: Path, num_tokens: int) -> Path:
    """Write a corpus, unless it exists."""
    if not folder.exists():
        folder.mkdir()
        tokens = np.random.default_rng(0).integers(1, 50_000, num_tokens, np.uint16)
        Roxxel(folder / "corpus.rox").write([tokens], dtype="uint16")
    return folder


def sparse(
    crew: Crew, ours: Adapter, folder: Path, num_shards: int, mib: int
) -> Record:
    """Return the cost of opening and resuming, and memory, with many sparse shards."""
    folder.mkdir()
    format_open.make(folder, num_shards, mib)
    num_tokens = num_shards * mib * 2**19
    todo = job([source(folder, num_tokens)], (16, 1025)) | {"variant": "folder"}
    late = todo | {"start": num_tokens // 1025 // 16 * 9 // 10}
    with crew.another(ours) as peer:
        memory = peer.ask("memory", job=todo, num_batches=50)["bytes"]
    with crew.another(ours) as peer:
        cold = peer.ask("measure", job=todo, seconds=0)["first_s"]
        opened = min(
            peer.ask("measure", job=todo, seconds=0)["first_s"] for _ in range(3)
        )
        resumed = min(
            peer.ask("measure", job=late, seconds=0)["first_s"] for _ in range(3)
        )
    for path in folder.iterdir():
        path.unlink()
    return {
        "figure": "shards",
        "shards": num_shards,
        "terabytes": num_tokens * 2 / 1e12,
        "first_open_s": cold,
        "open_s": opened,
        "resume_s": resumed,
        "memory_bytes": memory,
    }


def blend(
    crew: Crew, ours: Adapter, home: Path, num_sources: int, mib: int, seconds: float
) -> Record:
    """Return throughput and resuming of a blend with the same total of bytes."""
    num_tokens = mib * 2**19 // num_sources
    folders = [
        written(home / f"{num_sources}-{n}", num_tokens) for n in range(num_sources)
    ]
    # Shares that are not round, and far from each other: 1, 1/2, 1/3 and so on.
    sources = [source(f, num_tokens, 1 / (n + 1)) for n, f in enumerate(folders)]
    todo = job(sources, (64, 1025))
    late = todo | {"start": 900_000}  # of the 2**20 steps that a blend is given
    if num_sources == 1:
        late = todo | {"start": num_tokens // 1025 // 64 * 9 // 10}
    with crew.another(ours) as peer:
        drawn = [peer.ask("measure", job=todo, seconds=seconds) for _ in range(3)]
        resumed = min(
            peer.ask("measure", job=late, seconds=0)["first_s"] for _ in range(3)
        )
    return {
        "figure": "blend",
        "sources": num_sources,
        "throughput": max(one["tokens"] / one["seconds"] for one in drawn),
        "open_s": min(one["first_s"] for one in drawn),
        "resume_s": resumed,
    }


def share(
    crew: Crew, ours: Adapter, home: Path, num_processes: int, mib: int, seconds: float
) -> Record:
    """Return the joint throughput of processes that share the rows of a batch."""
    num_tokens = mib * 2**19
    folder = written(home / "1-0", num_tokens)
    todo = job([source(folder, num_tokens)], (48, 2049))
    found: list[float] = []
    with ExitStack() as stack:
        peers = [stack.enter_context(crew.another(ours)) for _ in range(num_processes)]
        for _ in range(3):
            for index, peer in enumerate(peers):
                part = {"process_index": index, "process_count": num_processes}
                peer.send("measure", job=todo | part, seconds=seconds)
            answers = [peer.receive() for peer in peers]
            found.append(sum(one["tokens"] / one["seconds"] for one in answers))
    return {
        "figure": "processes",
        "processes": num_processes,
        "throughput": max(found),
    }
