"""Prepare a corpus from many files, in many processes.

Consecutive input files of about 64 MiB in all become a unit: one process writes its
shards (`_write.units`). Which files belong to a unit follows from the files alone, so
the shards do not depend on the number of processes. A preparation that was interrupted
continues with the units that are done. Fewer files than two units, the standard input,
and a corpus of one file are written by this process.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._store.corpus_name import absolute
from roxxel_format._write.corpus_writer import write_corpus
from roxxel_format._write.options import WriteOptions, name_to_write
from roxxel_format._write.units import FileDocuments, Units
from roxxel_format.prepare.inputs import documents_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roxxel_format._write.options import Exist
    from roxxel_format._write.summary import WriteSummary
    from roxxel_format._write.units import Job

_MAX_NAMES = 100
_UNIT_SIZE = 1 << 26
_MAX_UNITS = 1 << 14


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files of documents.

    Attributes:
        paths: The files in the order of the corpus; `-` is the standard input.
        form: One of `FORMATS`; None to infer it from each name.
        field: Name of the value in JSON objects and tables.
    """

    paths: tuple[str, ...]
    form: str | None = None
    field: str = "text"

    def identity(self) -> str:
        """Return a digest of names, sizes, modification times, form and field."""
        facts = [_facts_of(path) for path in self.paths]
        text = json.dumps([facts, self.form, self.field])
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def source(self) -> list[str]:
        """Return the names to record: the first of them if there are very many."""
        names = [_name(path) for path in self.paths[:_MAX_NAMES]]
        more = len(self.paths) - len(names)
        return [*names, f"and {more} more"] if more else names


def prepare(
    filepath: str,
    inputs: Inputs,
    options: WriteOptions,
    exist: Exist,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> WriteSummary:
    """Write the documents of files into a corpus.

    Args:
        filepath: Path of the corpus; see `Roxxel`.
        inputs: The files.
        options: As for `Roxxel.write`; a tokenizer is a path or a name.
        exist: As for `Roxxel.write`.
        workers: Processes that write units at the same time.
        progress: Called with units done and units in all.

    Returns:
        What was written or kept.

    Raises:
        OSError: A file cannot be read or written, or a worker process ended early.
        ValueError: A document of a file is wrong; the message names the file. Or
            several workers are wanted for a corpus of one file.
    """
    options = replace(
        options,
        inputs=inputs.identity(),
        metadata={"source": inputs.source()} | options.metadata,
    )
    target = absolute(filepath)
    name = name_to_write(target)
    if name.manifest is None and workers > 1:
        raise ValueError(
            f"{name.single}: one process writes one file; leave --workers out, or "
            f'write to a pattern such as "{name.prefix}_*.rox"'
        )
    read = partial(documents_in, form=inputs.form, field=inputs.field)
    units = _units(inputs.paths) if name.manifest and "-" not in inputs.paths else []
    if len(units) > 1:
        run = partial(_run, workers=workers, progress=progress)
        return write_corpus(target, Units(units, read, run), options, exist)
    documents = FileDocuments(inputs.paths, read)
    with documents.naming_files():
        return write_corpus(target, documents, options, exist)


def _units(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Return consecutive files, in groups that are large enough for a unit."""
    sizes = [Path(path).stat().st_size for path in paths]
    # A corpus of 5 TB has as many shards as a manifest lists without a delay.
    enough = max(_UNIT_SIZE, sum(sizes) // _MAX_UNITS)
    groups: list[tuple[str, ...]] = []
    first = size = 0
    for stop, each in enumerate(sizes, 1):
        size += each
        if size >= enough or stop == len(sizes):
            groups.append(tuple(paths[first:stop]))
            first, size = stop, 0
    return groups


def _run(
    job: Job,
    units: Sequence[Sequence[str]],
    *,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the units that are not done, on processes of this machine.

    Raises:
        ChildProcessError: A worker process ended early.
    """
    missing = [number for number in range(len(units)) if job.shards(number) is None]
    done = len(units) - len(missing)
    for _ in _written(job, [(each, units[each]) for each in missing], workers):
        done += 1
        if progress is not None:
            progress(done, len(units))


def _written(
    job: Job, units: Sequence[tuple[int, Sequence[str]]], workers: int
) -> Iterator[None]:
    if workers == 1 or len(units) < 2:
        for unit in units:
            yield job.write_unit(*unit)
        return
    # The parent may have threads, which fork does not survive.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(units)), context)
    try:
        yield from pool.map(job.write_unit, *zip(*units, strict=True))
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process ended early, perhaps for lack of memory; use fewer "
            "workers and write again, which continues with the units that are done"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _facts_of(path: str) -> list[Any]:
    if path == "-":
        return [path]
    facts = Path(path).stat()
    return [_name(path), facts.st_size, facts.st_mtime_ns]


def _name(path: str) -> str:
    """Return a file's name, the same in every locale."""
    return os.fsencode(Path(path).name).decode(errors="replace")
