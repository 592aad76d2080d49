"""Prepare a corpus from many files, in many processes.

Consecutive input files of about 64 MiB in all become a part: a shard in a hidden folder
beside the corpus, written by one process. Parts are written in any order; then their
documents are copied into the corpus in the order of the files. So the result does not
depend on the number of processes, and a preparation that was interrupted continues with
the parts that are finished.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import secrets
import shutil
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import Shard
from roxxel_format._store.corpus_name import absolute
from roxxel_format._write import tokenizers
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.corpus_writer import write_corpus
from roxxel_format._write.intake import Intake
from roxxel_format._write.options import WriteOptions, name_to_write
from roxxel_format._write.shard_writer import ShardWriter
from roxxel_format.corpus import Roxxel
from roxxel_format.prepare.inputs import documents_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._write.options import Exist
    from roxxel_format._write.summary import WriteSummary

_MAX_NAMES = 100
_PART_SIZE = 1 << 26
_KIND = "kind"
"""Name in the metadata of a part: whether its documents are text or tokens."""


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


@dataclass(frozen=True, slots=True)
class _Task:
    """What a process needs to make one part."""

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
        filepath: Path of the corpus; see `Roxxel`.
        inputs: The files.
        options: As for `Roxxel.write`; a tokenizer is a path or a name.
        exist: As for `Roxxel.write`.
        workers: Processes that prepare parts at the same time.
        progress: Called with parts done and parts in all.

    Returns:
        What was written or kept.

    Raises:
        OSError: A file cannot be read or written, or a worker process ended early.
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
    folder = name_to_write(target).parts(inputs.identity())
    documents = _documents_of_parts(folder, inputs, options, workers, progress)
    try:
        summary = write_corpus(target, documents, options, exist)
    except BaseException:
        # The next write uses the finished parts, if there are any.
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)
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
    """Make the missing parts, then yield the documents of all parts in order.

    A generator: no part is made for a corpus that is kept.

    Raises:
        ValueError: Some files hold text, and others ready-made tokens.
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
    missing = [task for task in tasks if not task.part.exists()]
    done = len(tasks) - len(missing)
    for _ in _made(missing, workers):
        done += 1
        if progress is not None:
            progress(done, len(tasks))
    written = [task for task in tasks if task.part.stat().st_size]
    _check_one_kind(written)
    for task in written:
        with Roxxel([task.part]) as part:
            yield from part.documents


def _check_one_kind(tasks: Sequence[_Task]) -> None:
    """Check that all parts hold text, or all hold ready-made tokens."""
    first = None
    for task in tasks:
        kind = Shard(task.part).read_metadata()[_KIND]
        first = first or (kind, task)
        if kind != first[0]:
            raise ValueError(
                f"{task.paths[0]}: its documents are {kind}, but those of "
                f"{first[1].paths[0]} are {first[0]}; write text and ready-made tokens "
                "into different corpora"
            )


def _made(tasks: Sequence[_Task], workers: int) -> Iterator[None]:
    if workers == 1 or len(tasks) < 2:
        yield from map(_make_part, tasks)
        return
    # The parent may have threads, which fork does not survive.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context)
    try:
        yield from pool.map(_make_part, tasks)
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "a worker process ended early, perhaps for lack of memory; use fewer "
            "workers and write again, which continues with the finished parts"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _groups(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield consecutive files, in groups that are large enough for a part."""
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

    Files without documents give an empty file. Two processes that make the same part
    at once do no harm: each has a draft of its own, with the same bytes.
    """
    options = task.options
    tokenizer, info = None, None
    if options.tokenizer is not None:
        tokenizer, info = _tokenizer(options.tokenizer, task.tokenizer_identity)
    intake = Intake(options.dtype, options.vocab_size, tokenizer, info)
    own = task.part.with_name(f"{secrets.token_hex(4)}-{task.part.name}")
    writer: ShardWriter | None = None
    firsts: list[int] = []
    try:
        for tokens in intake.with_dtype(_arrays(task, intake, firsts)):
            if writer is None:
                assert intake.dtype is not None  # noqa: S101 - it saw a document
                writer = ShardWriter(own, intake.dtype, vocab_size=options.vocab_size)
            writer.append(tokens)
        if writer is None:
            own.touch()
        else:
            writer.metadata[_KIND] = intake.kind
            writer.close()
        own.replace(task.part)
    except BaseException as error:
        if writer is not None:
            writer.abort()
        own.unlink(missing_ok=True)
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


def _arrays(task: _Task, intake: Intake, firsts: list[int]) -> Iterator[Tokens]:
    """Yield the documents of a part as arrays; errors name the file.

    Args:
        task: The part.
        intake: Turns documents into arrays.
        firsts: Gets the number of each file's first document.
    """
    num_documents = 0
    for path in task.paths:
        firsts.append(num_documents)
        documents = documents_in(path, task.inputs.form, task.inputs.field)
        for number, document in enumerate(documents):
            try:
                tokens = intake.array(document, number)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}: {error}") from error
            num_documents += 1
            yield tokens


@lru_cache(maxsize=1)
def _tokenizer(
    name: object, identity: str | None
) -> tuple[tokenizers.Tokenizer, tokenizers.TokenizerInfo]:
    """Load a tokenizer once in each process; check that it is still the same."""
    tokenizer, info = tokenizers.load(name)
    if info.identity != identity:
        raise ValueError(
            f"{name}: the tokenizer changed while the corpus was prepared; write again"
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
    # The tokenizer's content, not its path: another version makes other parts.
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
