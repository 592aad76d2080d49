"""Prepare a corpus from many files, in many processes.

Consecutive files form a unit of at least 64 MiB; the last unit may be smaller. One
process writes all shards of a unit. The sizes of the files alone determine the units,
so the shards do not depend on the number of processes. A unit's shards have the same
names and bytes whichever process writes them, so writing a unit again is safe. The
metadata of a unit's last shard marks the unit as done. After an interruption, the same
command writes only the units that are not marked.

If there is only one unit, or `workers` is 1, the calling process writes. It also writes
a corpus of one file, and documents from the standard input.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
from bisect import bisect_right
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import count, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import Shard, layouts_of
from roxxel_format._spec.layout import shard_table
from roxxel_format._store.corpus_name import absolute
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.corpus_writer import Units, write_corpus
from roxxel_format._write.intake import Intake, load_tokenizer
from roxxel_format._write.options import WriteOptions, name_to_write
from roxxel_format._write.series import NoDocumentsError, ShardSeries
from roxxel_format.prepare.input_file import InputError
from roxxel_format.prepare.inputs import documents_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from roxxel_format._spec.tables import ShardTable
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.input_record import Inputs
    from roxxel_format._write.options import Exist, WriteSummary

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
    error.

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
            is more than 1 for a corpus of one file.
    """
    metadata = {"source": inputs.source} | options.metadata
    options = replace(options, inputs=inputs, metadata=metadata)
    target = absolute(filepath)
    name = name_to_write(target, sharded=options.may_make_several(exist))
    if name.manifest is None and workers > 1:
        raise ValueError(
            f"{name.single}: one process writes one file; leave --workers out, or "
            f'write to a pattern such as "{name.prefix}_*.rox"'
        )
    documents = _Documents(inputs.paths, inputs.form, inputs.field)
    data: _Documents | _Units = documents
    if name.manifest is not None and "-" not in inputs.paths:
        units = [replace(documents, paths=each) for each in _groups(inputs.paths)]
        if len(units) > 1:
            data = _Units(documents, units, workers, progress)
    try:
        with documents.naming_files():
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


@dataclass
class _Documents:
    """The documents of some files, in order; can be iterated once."""

    paths: Sequence[str]
    form: str | None
    field: str
    _firsts: list[int] = dataclasses.field(default_factory=list[int], init=False)

    def __iter__(self) -> Iterator[object]:
        number = 0
        for path in self.paths:
            self._firsts.append(number)
            for document in documents_in(path, self.form, self.field):
                yield document
                number += 1

    @contextmanager
    def naming_files(self) -> Generator[None]:
        """Convert the error of a document to a ValueError that names the file."""
        try:
            yield
        except (DocumentError, DocumentTypeError) as error:
            file = bisect_right(self._firsts, error.document) - 1
            number = error.document - self._firsts[file]
            raise ValueError(
                f"{self.paths[file]}: document {number}{error.problem}"
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
