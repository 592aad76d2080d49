"""The process of a library in the comparison: reads and writes JSON lines.

This module and `delivered.py` time, hash and check batches in the same way for every
library. A library's script only writes and reads a corpus. The process needs numpy, and
JAX if batches go to a device.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import cold as cold_pages
import delivered
import numpy as np


@dataclass(frozen=True)
class Source:
    """One corpus: the library's own, and the flat file from which it was made.

    Attributes:
        folder: Folder in which `write` put the corpus.
        flat: Flat file of the same tokens.
        num_tokens: Number of its tokens.
        weight: Share of the blend.
    """

    folder: Path
    flat: Path
    num_tokens: int
    weight: float = 1.0


@dataclass(frozen=True)
class Job:
    """The batches to deliver: int32, of shape `(batch_size, seq_len)`.

    Attributes:
        sources: Corpora to read; several are blended by weight.
        dtype: Stored type of a token.
        batch_size: Sequences of the global batch.
        seq_len: Tokens of a sequence.
        variant: Which way of using the library, if its script knows several.
        to: `"numpy"` or `"jax"`.
        put: How a numpy batch becomes a `jax.Array`.
        seed: Seed of the order.
        start: First batch.
        process_index: Index of this process. process_count: Number of processes that
            share the batches.
    """

    sources: tuple[Source, ...]
    dtype: str
    batch_size: int
    seq_len: int
    variant: str = ""
    to: str = "numpy"
    put: str = "callback"
    seed: int = 0
    start: int = 0
    process_index: int = 0
    process_count: int = 1

    @property
    def process_batch_size(self) -> int:
        """Sequences in this process's part of a batch."""
        return self.batch_size // self.process_count


Batches = Callable[[Job], Iterator[Any]]


@dataclass(frozen=True)
class Corpus:
    """Documents to write, in memory.

    Attributes:
        line: All tokens, one after another.
        ends: Where each document ends.
    """

    line: np.ndarray
    ends: np.ndarray

    def documents(self) -> Iterator[np.ndarray]:
        """Yield each document: a view."""
        start = 0
        for end in self.ends.tolist():
            yield self.line[start:end]
            start = end

    def samples(self, seq_len: int) -> np.ndarray:
        """Return the line cut into whole samples, for formats that store samples."""
        count = len(self.line) // seq_len
        return self.line[: count * seq_len].reshape(count, seq_len)

    def records(self, seq_len: int | None) -> Iterator[np.ndarray]:
        """Yield samples, or without a length the documents."""
        yield from self.documents() if seq_len is None else self.samples(seq_len)


Write = Callable[[Corpus, Path, int | None], None]
"""Writes a corpus to a folder. With a length, samples of this length can then be read;
with None, it is written document by document, if the format knows documents.
"""


def flat_tokens(job: Job) -> np.ndarray:
    """Return a map of the flat file, as a base-class view."""
    source = job.sources[0]
    return np.asarray(np.memmap(source.flat, job.dtype, "r"))


def serve(
    batches: Batches,
    write: Write | None = None,
    *,
    packages: tuple[str, ...] = (),
    gives: str = "numpy",
) -> None:
    """Answer requests until the input ends.

    Args:
        batches: Opens what was written and yields batches from `job.start` on.
        write: See `Write`; None if the library reads the flat file.
        packages: Distributions whose versions are reported.
        gives: Type of the batches: `"jax"`, `"numpy"`, or `"both"`, as the job wants.
            This module puts numpy batches on the device, by `job.put`.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    server = _Server(batches, write, packages, gives)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, "do_" + request.pop("do"))(**request)
        except NotImplementedError:
            answer = {"not_offered": True}
        except Exception as error:  # noqa: BLE001 -- told to the driver, which goes on
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class _Server:
    def __init__(
        self,
        batches: Batches,
        write: Write | None,
        packages: tuple[str, ...],
        gives: str,
    ) -> None:
        self._batches = batches
        self._write = write
        self._packages = packages
        self._gives = gives

    def do_hello(self) -> dict[str, Any]:
        versions = {
            name: importlib.metadata.version(name)
            for name in (*self._packages, "numpy", "jax")
        }
        return {"versions": versions, "writes": self._write is not None}

    def do_write(
        self, flat: str, ends: str, dtype: str, folder: str, seq_len: int | None
    ) -> dict[str, Any]:
        """Write a corpus that is in memory; return bytes on disk, and seconds."""
        assert self._write is not None
        corpus = Corpus(np.fromfile(flat, dtype), np.load(ends))
        place = Path(folder)
        place.mkdir(parents=True)
        began = time.perf_counter()
        self._write(corpus, place, seq_len)
        returned = time.perf_counter()
        files = [path for path in place.rglob("*") if path.is_file()]
        for path in files:
            _sync(path)
        synced = time.perf_counter()
        return {
            "seconds": returned - began,
            "synced_seconds": synced - began,
            "bytes": sum(path.stat().st_size for path in files),
            "tokens": len(corpus.line),
        }

    def do_measure(
        self, job: dict[str, Any], seconds: float, cold: bool = False
    ) -> dict[str, Any]:
        """Draw batches for a time, epoch after epoch.

        Opening and the first batch are timed separately; with 0 seconds nothing else
        is. Cold pages are drawn at most once. Warm pages are opened and drawn for half
        the time before the measurement, because a process that was idle starts slowly.

        Raises:
            OSError: The pages must be cold but stay in memory.
        """
        todo = _job(job)
        if cold:
            _forget(todo)
        elif seconds:
            self._draw(todo, seconds / 2)
        first_s, drawn_s, tokens = self._draw(todo, seconds)
        while drawn_s < seconds and not cold:
            _, more_s, more = self._draw(todo, seconds - drawn_s)
            drawn_s, tokens = drawn_s + more_s, tokens + more
        return {"first_s": first_s, "seconds": drawn_s, "tokens": tokens}

    def _draw(self, job: Job, seconds: float) -> tuple[float, float, int]:
        """Return seconds to the first batch, and seconds and tokens of later ones."""
        clock = time.perf_counter
        began = clock()
        batches = self._open(job)
        batch = next(batches)
        _wait(batch)
        first_s = clock() - began
        shape = job.process_batch_size, job.seq_len
        delivered.check_shape(batch, shape)
        count = 0
        began = clock()
        if seconds:
            stop = began + seconds
            for made in batches:
                batch = made
                count += 1
                if clock() >= stop:
                    break
            _wait(batch)
        drawn_s = clock() - began
        if seconds and not count:
            raise ValueError(f"an epoch has only one batch of {shape}")
        _close(batches)
        del batches
        gc.collect()
        return first_s, drawn_s, count * shape[0] * shape[1]

    def do_memory(self, job: dict[str, Any], num_batches: int) -> dict[str, Any]:
        """Draw batches; return the growth of private memory since before opening."""
        todo = _job(job)
        if "jax" in sys.modules:  # what JAX holds is not the loader's
            sys.modules["jax"].numpy.zeros(1).block_until_ready()
        gc.collect()
        before = _anonymous_bytes()
        iterator = self._open(todo)
        batch = deque(islice(iterator, num_batches), maxlen=1).pop()
        _wait(batch)
        more = _anonymous_bytes() - before
        _close(iterator)
        return {"bytes": more - batch.nbytes}

    def do_digest(self, job: dict[str, Any], num_batches: int) -> dict[str, Any]:
        """Return a digest of the first batches."""
        digest = hashlib.sha256()
        iterator = self._open(_job(job))
        for batch in islice(iterator, num_batches):
            digest.update(np.ascontiguousarray(batch).tobytes())
        _close(iterator)
        return {"digest": digest.hexdigest()}

    def do_check(
        self, job: dict[str, Any], blend: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Check the batches of a corpus of positions; return the results."""
        return delivered.report(
            self._gather,
            _job(job),
            None if blend is None else _job(blend),
        )

    def _gather(self, job: Job, limit: int) -> list[np.ndarray]:
        """Return copies of an epoch's batches, up to a limit."""
        iterator = self._open(job)
        made = [np.array(batch) for batch in islice(iterator, limit)]
        _close(iterator)
        gc.collect()
        return made

    def _open(self, job: Job) -> Iterator[Any]:
        iterator = iter(self._batches(job))
        if job.to == "numpy":
            return map(np.asarray, iterator) if self._gives == "jax" else iterator
        return _placed(iterator, job) if self._gives == "numpy" else iterator


def _placed(batches: Iterator[np.ndarray], job: Job) -> Iterator[Any]:
    """Yield numpy batches as arrays on one device."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data", None))
    shape = (job.batch_size, job.seq_len)
    if job.put == "device_put":
        for batch in batches:
            yield jax.device_put(batch, sharding)
        return
    make = jax.make_array_from_callback
    for batch in batches:
        yield make(shape, sharding, batch.__getitem__)


def _wait(batch: Any) -> None:
    if not isinstance(batch, np.ndarray):
        batch.block_until_ready()


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _job(fields: dict[str, Any]) -> Job:
    sources = tuple(
        Source(Path(s["folder"]), Path(s["flat"]), s["num_tokens"], s["weight"])
        for s in fields["sources"]
    )
    return Job(**fields | {"sources": sources})


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _forget(job: Job) -> None:
    """Drop the pages of the corpora from the system's cache."""
    cold_pages.drop_all(
        path
        for source in job.sources
        for path in (source.flat, *source.folder.rglob("*"))
        if path.is_file()
    )


def _anonymous_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return 1024 * sum(
        int(line.split()[1])
        for line in text.splitlines()
        if line.startswith("Anonymous")
    )
