"""Units: parts of a preparation that write their shards independently of each other.

A unit is some consecutive input files. The names of its shards follow from the job and
the number of the unit. So any process may write a unit, any number of times: it writes
the same bytes under the same names, and a unit whose shards are whole is not written
again. The last shard of a unit says so in its metadata.
"""

from __future__ import annotations

import json
import secrets
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from roxxel_format._read.contents import layouts_of
from roxxel_format._read.shard import Shard
from roxxel_format._spec.manifest import ShardTable
from roxxel_format._write import tokenizers
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.intake import Intake
from roxxel_format._write.series import NoDocumentsError, ShardSeries

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.options import WriteOptions

_LAST_OF_UNIT = "last_of_unit"
"""Name in the metadata of the last shard of a unit."""

Read = Callable[[str], "Iterator[object]"]
"""Returns the documents of an input file."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every process of a preparation must know; it can be pickled.

    Attributes:
        name: The corpus.
        digest: 12 hexadecimal digits that depend on the inputs, on the arguments, and
            on the version of the corpus that the write began from.
        options: Arguments of the write, with the dtype of the corpus.
        kind: `"text"` or `"tokens"`.
        tokenizer_identity: Identity of the tokenizer, None without one.
        read: As for `Units`.
    """

    name: CorpusName
    digest: str
    options: WriteOptions
    kind: str | None
    tokenizer_identity: str | None
    read: Read

    def shards(self, unit: int) -> list[Path] | None:
        """Return the shards of a unit in order, None if the unit is not done.

        A unit without documents is never done, and has no shards.
        """
        found: list[Path] = []
        while (path := self.name.unit_shard(self.digest, unit, len(found))).exists():
            found.append(path)
        is_done = found and _LAST_OF_UNIT in Shard(found[-1]).read_metadata()
        return found if is_done else None

    def write_unit(self, unit: int, paths: Sequence[str]) -> None:
        """Write the shards of a unit, if it is not done.

        Two processes may write the same unit at once: each has drafts of its own.

        Raises:
            ValueError: A document is wrong; the message names its file.
            OSError: A file cannot be read or written.
        """
        if self.shards(unit) is not None:
            return
        tokenizer, info = None, None
        if self.options.tokenizer is not None:
            tokenizer, info = tokenizers.load(self.options.tokenizer)
            if info.identity != self.tokenizer_identity:
                raise ValueError(
                    f"{self.options.tokenizer}: the tokenizer changed while the corpus "
                    "was prepared; write again"
                )
        intake = Intake(
            self.options.dtype, tokenizer=tokenizer, info=info, kind=self.kind
        )
        pieces = iter(range(1_000_000))
        series = ShardSeries(
            self.name.pattern,
            lambda: self.name.unit_shard(self.digest, unit, next(pieces)),
            self.options,
            intake,
            {},
            last_metadata={_LAST_OF_UNIT: True},
            writer=secrets.token_hex(4),
        )
        documents = FileDocuments(paths, self.read)
        try:
            with documents.naming_files():
                series.write_all(documents)
        except NoDocumentsError:
            return
        except BaseException:
            series.abort()
            raise


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a preparation, in the order of the corpus.

    Attributes:
        paths: The input files of each unit.
        read: Returns the documents of a file.
        run: Calls `job.write_unit(number, paths)` for every unit, in any order, on any
            processes.
    """

    paths: Sequence[Sequence[str]]
    read: Read
    run: Callable[[Job, Sequence[Sequence[str]]], None]

    def job(
        self,
        name: CorpusName,
        options: WriteOptions,
        intake: Intake,
        arguments: dict[str, Any],
        base: str | None,
    ) -> Job:
        """Return the job of a write.

        The first document decides the kind and, unless it is given, the dtype, so that
        neither depends on where units begin.

        Args:
            name: The corpus.
            options: Arguments of the write.
            intake: Gets the dtype and the kind.
            arguments: The arguments that a version records.
            base: Fingerprint of the corpus that the write began from.

        Raises:
            ValueError: There are no documents, or the first is wrong.
        """
        everything = [path for paths in self.paths for path in paths]
        documents = FileDocuments(everything, self.read)
        with documents.naming_files():
            if next(intake.arrays(documents), None) is None:
                raise NoDocumentsError(name.pattern)
        facts = [arguments, options.metadata, base, intake.dtype]
        text = json.dumps(facts, sort_keys=True)
        return Job(
            name,
            blake2b(text.encode(), digest_size=6).hexdigest(),
            replace(options, dtype=intake.dtype),
            intake.kind,
            intake.info.identity if intake.info else None,
            self.read,
        )

    def write(self, job: Job) -> ShardTable:
        """Write all units; return their shards in order."""
        self.run(job, self.paths)
        paths: list[Path] = []
        for unit in range(len(self.paths)):
            paths += job.shards(unit) or []
        layouts = layouts_of([str(path) for path in paths])
        return ShardTable.of([path.name for path in paths], layouts)


class FileDocuments:
    """The documents of some files, in order; iterate over them once.

    Args:
        paths: The files.
        read: Returns the documents of a file.
    """

    def __init__(self, paths: Sequence[str], read: Read) -> None:
        self._paths = paths
        self._read = read
        self._firsts: list[int] = []

    def __iter__(self) -> Iterator[object]:
        count = 0
        for path in self._paths:
            self._firsts.append(count)
            for document in self._read(path):
                yield document
                count += 1

    @contextmanager
    def naming_files(self) -> Generator[None]:
        """Make errors of documents name the file, and count from its first document.

        Raises:
            ValueError: The block raised an error of one document.
        """
        try:
            yield
        except (DocumentError, DocumentTypeError) as error:
            file = bisect_right(self._firsts, error.document) - 1
            number = error.document - self._firsts[file]
            raise ValueError(
                f"{self._paths[file]}: document {number}{error.problem}"
            ) from error
