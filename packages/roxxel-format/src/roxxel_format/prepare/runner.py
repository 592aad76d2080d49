"""Prepare a corpus from many files, in many processes.

Consecutive files form a unit of at least 64 MiB; the last unit may be smaller. One
process writes all shards of a unit. The sizes of the files alone determine the units,
so the shards do not depend on the number of processes. A unit's shards have the same
names and bytes whichever process writes them, so writing a unit again is safe. The
metadata of a unit's last shard marks the unit as done. After an interruption, the same
command writes only the units that are not marked.

If there is only one unit, or `workers` is 1, the calling process writes. It also writes
a corpus of one file, documents from the standard input, and documents of shards of the
first Roxxel that are cut at separators, because a document may be in several shards.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import sys
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count, groupby, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from roxxel_format._read.foreign_files import is_untyped
from roxxel_format._read.shard import Shard, layouts_of
from roxxel_format._spec.dtypes import stored_dtype, stored_name
from roxxel_format._spec.layout import shard_table
from roxxel_format._store.corpus_name import absolute
from roxxel_format._store.urls import DEFAULT_TIMEOUT_S, is_url
from roxxel_format._write.bucket_writer import write_to_bucket
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.corpus_writer import Units, write_corpus
from roxxel_format._write.intake import Intake, load_intake, load_tokenizer
from roxxel_format._write.options import Separator, WriteOptions
from roxxel_format._write.place import BucketPlace
from roxxel_format._write.series import NoDocumentsError, ShardSeries
from roxxel_format._write.target import name_to_write
from roxxel_format.errors import ShardError
from roxxel_format.foreign import Roxxel02Tokens
from roxxel_format.prepare.input_file import InputError
from roxxel_format.prepare.inputs import documents_in, is_old_shard, is_present_shard

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from roxxel_format._spec.tables import ShardTable
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.input_record import Inputs
    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary

_UNIT_SIZE = 1 << 26
_MAX_UNITS = 1 << 14
_LAST_OF_UNIT = "last_of_unit"
"""Key in the metadata of the last shard of a unit."""


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

    If the tokenizer determines the separator, print how documents end on the standard
    error. If shards of the first Roxxel become documents for lack of a separator, print
    this too.

    Args:
        filepath: Path of the corpus; see `Roxxel`.
        inputs: The files.
        options: As for `Roxxel.write`; a tokenizer is a path or a name.
        exist: As for `Roxxel.write`.
        workers: Processes that write units at the same time.
        progress: Called with the number of finished units and the number of units.

    Returns:
        A summary of the shards that were written or kept.

    Raises:
        FileExistsError: `exist` does not allow changing the corpus. Also for
            `exist="keep"` if an input is a pipe or the standard input, because
            neither can be compared with the inputs of the corpus.
        OSError: A file cannot be read or written, or a worker process ended early.
        ValueError: A document is invalid (the message names its file), or `workers`
            is more than 1 for a corpus of one file or in a bucket.
    """
    metadata = {"source": inputs.source} | options.metadata
    options = replace(options, inputs=inputs, metadata=metadata)
    target = absolute(filepath)
    assert isinstance(target, str)  # noqa: S101 - one path gives one path
    name = None
    if not is_url(target):
        name = name_to_write(target, sharded=options.may_make_several(exist))
    elif workers > 1:
        raise ValueError(
            f"{target}: one process writes to a bucket; leave --workers out, or write "
            "to a disk with --workers, and copy the corpus (`roxxel-format copy`)"
        )
    if name is not None and name.manifest is None and workers > 1:
        raise ValueError(
            f"{name.single}: one process writes one file; leave --workers out, or "
            f'write to a pattern such as "{name.prefix}_*.rox"'
        )
    documents = _Documents(inputs.paths, inputs.form, inputs.field)
    old = [path for path in inputs.paths if is_old_shard(path, inputs.form)]
    if old:
        options, separator = _with_old_separator(options, old[0])
        documents = replace(documents, separator=separator, old_dtype=options.dtype)
    data: _Documents | _Units = documents
    is_in_units = documents.separator is None and "-" not in inputs.paths
    if name is not None and name.manifest is not None and is_in_units:
        units = [replace(documents, paths=each) for each in _groups(inputs.paths)]
        if len(units) > 1:
            data = _Units(documents, units, workers, progress)
    try:
        with documents.naming_files():
            if name is None:
                place = BucketPlace(target, DEFAULT_TIMEOUT_S)
                return write_to_bucket(
                    place, documents, options, exist, says_ending=True
                )
            return write_corpus(target, data, options, exist, says_ending=True)
    except NoDocumentsError as error:
        others = len(inputs.paths) - 1
        raise InputError(
            f"{inputs.paths[0]}: holds no documents"
            f"{f', like the other inputs ({others})' if others else ''}; check the "
            "inputs"
        ) from error


def _groups(paths: Sequence[str]) -> list[tuple[str, ...]]:
    """Group consecutive files into units."""
    sizes = [Path(path).stat().st_size for path in paths]
    # Limit the number of units, so that the manifest of a large corpus opens fast.
    enough = max(_UNIT_SIZE, sum(sizes) // _MAX_UNITS)
    groups: list[tuple[str, ...]] = []
    first = size = 0
    for stop, each in enumerate(sizes, 1):
        size += each
        if size >= enough or stop == len(sizes):
            groups.append(tuple(paths[first:stop]))
            first, size = stop, 0
    return groups


def _with_old_separator(
    options: WriteOptions, path: str
) -> tuple[WriteOptions, int | bytes | None]:
    """Return options for the new corpus, and the separator that cuts the old shards.

    The options have the separator of the new corpus. `Roxxel02Tokens` cuts documents at
    the other separator; if it is None, each shard is one document. The two separators
    differ if the separator is bytes: these are items in the dtype of the old shards,
    and the options have the same items in the dtype of the new corpus. `path` is the
    first of the old shards.
    """
    is_default = options.separator is Separator.OF_TOKENIZER
    found, intake = load_intake(options)
    separator = cast("int | bytes | None", found.separator)
    if separator is None and is_default and not is_present_shard(path):
        sys.stderr.write(
            f"{path}: a shard of the first Roxxel does not record its documents, so "
            "each shard becomes one document; to cut documents at a separator, pass "
            "--separator or --separator-bytes\n"
        )
    if not isinstance(separator, bytes):
        return options, separator
    stored = _opened_old_shards([path], separator, options.dtype).dtype
    items = np.frombuffer(separator, stored)
    if items.size == 1:
        return replace(options, separator=items[0].item()), separator
    name = stored_name(stored) if intake.dtype is None else intake.dtype
    new = items.astype(stored_dtype(name))
    if (new != items).any():
        raise ValueError(
            f"the separator {items.tolist()} of {path} does not fit {name}; choose a "
            "wider --dtype, or leave --dtype and --vocab-size out"
        )
    return replace(options, separator=new.tobytes()), separator


def _opened_old_shards(
    paths: Sequence[str], separator: int | bytes, dtype: str | None
) -> Roxxel02Tokens:
    """Open shards of the first Roxxel, whose documents end with a separator.

    `dtype` is their item type if they do not record one.

    Raises:
        InputError: A file is compressed or the standard input, damaged, or not a shard.
        ValueError: The separator is not a token, or not the bytes of whole tokens.
    """
    for path in paths:
        if path == "-" or path.endswith((".gz", ".zst")):
            what = "the standard input" if path == "-" else "compressed"
            raise InputError(
                f"{path}: is {what}, but only shards in uncompressed files can be cut "
                "into documents; pass uncompressed files, or --separator none"
            )
    try:
        is_needed = all(map(is_untyped, paths))
        return Roxxel02Tokens(paths, dtype if is_needed else None, separator=separator)
    except ShardError as error:
        raise InputError(str(error)) from error


@dataclass
class _Documents:
    """The documents of some files, in order; can be iterated once.

    With `separator`, consecutive shards of the first Roxxel are one line of tokens, and
    a document ends after each separator. `old_dtype` is the item type of those shards
    that do not record one.
    """

    paths: Sequence[str]
    form: str | None
    field: str
    separator: int | bytes | None = None
    old_dtype: str | None = None
    _firsts: list[int] = dataclasses.field(default_factory=list[int], init=False)
    _names: list[str] = dataclasses.field(default_factory=list[str], init=False)

    def __iter__(self) -> Iterator[object]:
        number = 0
        for paths in self._groups():
            self._firsts.append(number)
            more = " and the shards after it" if len(paths) > 1 else ""
            self._names.append(paths[0] + more)
            for document in self._documents_in(paths):
                yield document
                number += 1

    def _groups(self) -> Iterator[list[str]]:
        """Yield the files one by one, and all shards of one line together."""
        for is_line, paths in groupby(self.paths, self._is_cut):
            if is_line:
                yield list(paths)
            else:
                yield from ([path] for path in paths)

    def _is_cut(self, path: str) -> bool:
        return self.separator is not None and is_old_shard(path, self.form)

    def _documents_in(self, paths: list[str]) -> Iterable[object]:
        if self.separator is not None and self._is_cut(paths[0]):
            return _opened_old_shards(paths, self.separator, self.old_dtype).documents
        return documents_in(paths[0], self.form, self.field, self.old_dtype)

    @contextmanager
    def naming_files(self) -> Generator[None]:
        """Convert the error of a document to a ValueError that names the file."""
        try:
            yield
        except (DocumentError, DocumentTypeError) as error:
            file = bisect_right(self._firsts, error.document) - 1
            number = error.document - self._firsts[file]
            raise ValueError(
                f"{self._names[file]}: document {number}{error.problem}"
            ) from error


@dataclass(frozen=True)
class _Units(Units):
    """The units of a preparation, in corpus order; written on this machine."""

    documents: _Documents
    units: Sequence[_Documents]
    workers: int
    progress: Callable[[int, int], None] | None

    def begin(
        self,
        name: CorpusName,
        options: WriteOptions,
        intake: Intake,
        arguments: Mapping[str, Any],
        base: str | None,
    ) -> Callable[[], ShardTable]:
        """Read documents until dtype and kind are known; return a function that writes.

        Every unit uses this dtype and kind, wherever it begins. Raises NoDocumentsError
        if there are no documents.
        """
        if next(intake.arrays(self.documents), None) is None:
            raise NoDocumentsError(name.pattern)
        facts = [arguments, options.metadata, base, intake.dtype]
        text = json.dumps(facts, sort_keys=True)
        job = _Job(
            name,
            blake2b(text.encode(), digest_size=6).hexdigest(),
            replace(options, dtype=intake.dtype, inputs=None),
            intake.kind,
            intake.tokenizer_identity,
        )
        return partial(self._write, job)

    def _write(self, job: _Job) -> ShardTable:
        """Write all missing units; return the shards of all units."""
        numbered = enumerate(self.units)
        missing = [each for each in numbered if job.shards(each[0]) is None]
        num_done = len(self.units) - len(missing)
        for done, _ in enumerate(self._written(job, missing), num_done + 1):
            if self.progress is not None:
                self.progress(done, len(self.units))
        paths: list[Path] = []
        for number in range(len(self.units)):
            paths += job.shards(number) or []
        layouts = layouts_of([str(path) for path in paths])
        return shard_table([path.name for path in paths], layouts)

    def _written(
        self, job: _Job, units: Sequence[tuple[int, _Documents]]
    ) -> Iterator[None]:
        if self.workers == 1 or len(units) < 2:
            yield from starmap(job.write_unit, units)
            return
        # The parent may have threads, so a forked child could deadlock.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(self.workers, len(units)), context)
        try:
            yield from pool.map(job.write_unit, *zip(*units, strict=True))
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process ended early, perhaps for lack of memory; write again "
                "with fewer workers, which keeps the finished units"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Job:
    """The picklable data that every process of a preparation needs.

    `digest` is 12 hexadecimal digits that depend on the inputs, the arguments, and the
    version of the corpus before the write. `options.dtype` is the dtype of the corpus.
    """

    name: CorpusName
    digest: str
    options: WriteOptions
    kind: str | None
    tokenizer_identity: str | None

    def shards(self, unit: int) -> list[Path] | None:
        """Return a unit's shards in order; None if the unit is missing or empty."""
        found: list[Path] = []
        while (path := self.name.unit_shard(self.digest, unit, len(found))).exists():
            found.append(path)
        is_done = found and _LAST_OF_UNIT in Shard(found[-1]).read_metadata()
        return found if is_done else None

    def write_unit(self, unit: int, documents: _Documents) -> None:
        """Write a unit unless it is done; several processes may write the same unit."""
        if self.shards(unit) is not None:
            return
        tokenizer = load_tokenizer(self.options)
        if tokenizer and tokenizer.identity != self.tokenizer_identity:
            raise ValueError(
                f"{self.options.tokenizer}: the tokenizer changed while the corpus "
                "was prepared; write again"
            )
        pieces = count()
        series = ShardSeries(
            self.name.pattern,
            lambda: (self.name.unit_shard(self.digest, unit, next(pieces)), None),
            self.options,
            Intake(self.options.dtype, tokenizer=tokenizer, kind=self.kind),
            {},
            last_metadata={_LAST_OF_UNIT: True},
        )
        try:
            with documents.naming_files():
                series.write_all(documents)
        except NoDocumentsError:
            return
        except BaseException:
            series.abort()
            raise
