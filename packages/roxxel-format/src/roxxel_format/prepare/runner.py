"""Prepare a corpus from many files, in many processes, with one result.

A run of input files, some 64 MiB of them, becomes a part: a shard beside the corpus,
made by one process. Parts are made in any order; then their documents are written into
the corpus in the order of the files. So the result does not depend on the number of
processes, and a preparation that was interrupted goes on with the parts it finds.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._store.names import absolute, place_to_write
from roxxel_format._write import tokenizers
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.corpus_writer import WriteOptions, write_corpus
from roxxel_format._write.intake import Intake
from roxxel_format._write.shard_writer import ShardWriter
from roxxel_format.corpus import Roxxel
from roxxel_format.prepare.inputs import documents_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._write.corpus_writer import Exist
    from roxxel_format._write.summary import WriteSummary

_MAX_NAMES = 100
_PART_SIZE = 1 << 26


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files of documents.

    Attributes:
        paths: In the order of the corpus; `-` is the standard input.
        form: One of `FORMATS`, or None to go by each name.
        field: Name of the value in JSON objects and tables.
    """

    paths: tuple[str, ...]
    form: str | None = None
    field: str = "text"

    def identity(self) -> str:
        """Return a digest of names, sizes and times of change, and how to read."""
        facts = [_facts_of(path) for path in self.paths]
        text = json.dumps([facts, self.form, self.field])
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def source(self) -> list[str]:
        """Return the names to record; of very many, the first."""
        names = [_name(path) for path in self.paths[:_MAX_NAMES]]
        more = len(self.paths) - len(names)
        return [*names, f"and {more} more"] if more else names


@dataclass(frozen=True, slots=True)
class _Task:
    """What a process needs to know to make one part."""

    paths: tuple[str, ...]
    part: Path
    inputs: Inputs
    options: WriteOptions
    tokenizer_identity: str | None


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
        filepath: Where the corpus is to be; see `Roxxel`.
        inputs: The files.
        options: As for `Roxxel.write`; a tokenizer is a path or a name.
        exist: As for `Roxxel.write`.
        workers: Processes that prepare parts at the same time.
        progress: Called with parts done and parts in all.

    Returns:
        What was written or kept.

    Raises:
        OSError: A file cannot be read or written, or a worker process was ended.
        ValueError: A document of a file is wrong; the message names the file.
    """
    options = replace(
        options,
        inputs=inputs.identity(),
        metadata={"source": inputs.source()} | options.metadata,
    )
    target = absolute(filepath)
    if "-" in inputs.paths:
        return write_corpus(target, _documents(inputs), options, exist)
    place = place_to_write(target)
    folder = place.parts / inputs.identity()
    documents = _documents_of_parts(folder, inputs, options, workers, progress)
    try:
        summary = write_corpus(target, documents, options, exist)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        # What is done stays for the next time; folders without anything do not.
        with contextlib.suppress(OSError):
            folder.rmdir()
        with contextlib.suppress(OSError):
            place.parts.rmdir()
    return summary


def _documents(inputs: Inputs) -> Iterator[object]:
    for path in inputs.paths:
        yield from documents_in(path, inputs.form, inputs.field)


def _documents_of_parts(
    folder: Path,
    inputs: Inputs,
    options: WriteOptions,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[object]:
    """Make the parts that are missing, then yield their documents in order.

    Nothing happens before the first document is asked for, so a corpus that is kept
    costs nothing.
    """
    identity = None
    if options.tokenizer is not None:
        _, info = tokenizers.load(options.tokenizer)
        identity = info.identity
    tasks: list[_Task] = []
    for paths in _groups(inputs.paths):
        name = _part_name(len(tasks), paths, inputs, options, identity)
        tasks.append(_Task(paths, folder / name, inputs, options, identity))
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {task.part.name for task in tasks}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    missing = [task for task in tasks if not task.part.exists()]
    done = len(tasks) - len(missing)
    for _ in _made(missing, workers):
        done += 1
        if progress is not None:
            progress(done, len(tasks))
    for task in tasks:
        if task.part.stat().st_size:
            with Roxxel([task.part]) as part:
                yield from part.documents


def _made(tasks: Sequence[_Task], workers: int) -> Iterator[None]:
    if workers == 1 or len(tasks) < 2:
        yield from map(_make_part, tasks)
        return
    # Not by fork: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context)
    try:
        yield from pool.map(_make_part, tasks)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process was ended, perhaps for want of memory; use fewer workers "
            "and write again, which goes on with what is done"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _groups(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield runs of files, each large enough to be worth a part."""
    group: list[str] = []
    size = 0
    for path in paths:
        group.append(path)
        size += Path(path).stat().st_size
        if size >= _PART_SIZE:
            yield tuple(group)
            group, size = [], 0
    if group:
        yield tuple(group)


def _make_part(task: _Task) -> None:
    """Write the documents of some files as a shard without separators.

    Files without documents give an empty part.
    """
    options = task.options
    tokenizer, info = None, None
    if options.tokenizer is not None:
        tokenizer, info = _tokenizer(options.tokenizer, task.tokenizer_identity)
    intake = Intake(options.dtype, options.vocab_size, tokenizer, info)
    writer: ShardWriter | None = None
    firsts: list[int] = []
    try:
        for path in task.paths:
            firsts.append(writer.num_documents if writer else 0)
            for tokens in _arrays(path, task.inputs, intake):
                if writer is None:
                    assert intake.dtype is not None  # noqa: S101 - it saw a document
                    writer = ShardWriter(
                        task.part, intake.dtype, vocab_size=options.vocab_size
                    )
                writer.append(tokens)
        if writer is None:
            task.part.touch()
        else:
            writer.close()
    except BaseException as error:
        if writer is not None:
            writer.abort()
        if isinstance(error, (DocumentError, DocumentTypeError)):
            raise _with_file(error, task.paths, firsts) from error
        raise


def _with_file(
    error: DocumentError | DocumentTypeError, paths: Sequence[str], firsts: list[int]
) -> ValueError:
    """Return the error with the file, and the document's number in it."""
    at = bisect_right(firsts, error.document) - 1
    number = error.document - firsts[at]
    return ValueError(f"{paths[at]}: document {number}: {error.reason}")


def _arrays(path: str, inputs: Inputs, intake: Intake) -> Iterator[Tokens]:
    """Yield the documents of one file as arrays; errors name the file."""
    documents = documents_in(path, inputs.form, inputs.field)
    for number, document in enumerate(documents):
        try:
            tokens = intake.array(document, number)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        yield tokens


@lru_cache(maxsize=1)
def _tokenizer(
    name: object, identity: str | None
) -> tuple[tokenizers.Tokenizer, tokenizers.TokenizerInfo]:
    """Load a tokenizer once in each process; it must be the one that is meant."""
    tokenizer, info = tokenizers.load(name)
    if info.identity != identity:
        raise ValueError(
            f"{name}: was changed while the corpus is prepared; start the write again"
        )
    return tokenizer, info


def _part_name(
    number: int,
    paths: Sequence[str],
    inputs: Inputs,
    options: WriteOptions,
    identity: str | None,
) -> str:
    facts: list[Any] = [[_facts_of(path) for path in paths], inputs.form, inputs.field]
    # The tokenizer's content, not its path: a part that another version made is no use.
    facts += [options.dtype, options.vocab_size, identity]
    digest = blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    return f"{number:06d}-{digest}.rox"


def _facts_of(path: str) -> list[Any]:
    if path == "-":
        return [path]
    facts = Path(path).stat()
    return [_name(path), facts.st_size, facts.st_mtime_ns]


def _name(path: str) -> str:
    """Return a file's name, the same in every locale."""
    return os.fsencode(Path(path).name).decode(errors="replace")
