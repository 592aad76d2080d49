"""Write documents as shards of one corpus: the one driver from documents to shards.

A job can be pickled. The process that began a write may use it, or a task on another
machine, or a process of a preparation, in a folder or in a bucket. The shards are the
same in each case, and only their names differ:

- `Place.new_shards`: names that no other write has, for one process;
- `attempt`: names that no other attempt has, because a scheduler may run a task twice;
- `unit`: the same names every time, because a unit has the same shards every time.

All names begin with the digest of the write or the job, so its files can be found.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.tables import NewShards
from roxxel_format._write.intake import Intake, intake_of, load_tokenizer
from roxxel_format._write.new_columns import NewColumns
from roxxel_format._write.series import NoDocumentsError, ShardSeries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.options import WriteOptions
    from roxxel_format._write.place import Place
    from roxxel_format._write.series import Arrange
    from roxxel_format._write.tokenizers import Tokenizer

# The number in a shard's name is the number of the task and 18 random digits.
_PER_TASK = 10**18


@dataclass
class WriteJob:
    """The picklable data that writing shards of one corpus needs.

    Attributes:
        digest: 12 hexadecimal digits, the beginning of the shards' names.
        target: The corpus: the names of its files on a disk, or the URL of its pattern.
        options: The arguments of the write. If they have no dtype, the first document
            decides it.
        kind: `"text"` or `"tokens"`; None if the first document decides it.
        tokenizer_identity: Identity of the tokenizer, which every machine must load.
    """

    digest: str
    target: CorpusName | str
    options: WriteOptions
    kind: str | None
    tokenizer_identity: str | None
    _tokenizer: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Each process loads the tokenizer once; an object that was passed is pickled.
        return self.__dict__ | {"_tokenizer": None}

    def unit(
        self,
        place: Place,
        number: int,
        documents: Iterable[object],
        ending: Callable[[], Mapping[str, object]],
        arrange: Arrange | None = None,
    ) -> NewShards:
        """Write unit `number` at a place; its shards always have the same names.

        Args:
            place: The place of the corpus.
            number: Number of the unit.
            documents: Rows with an origin.
            ending: Returns metadata for the last shard, after the last document.
            arrange: Returns the documents in the order in which to write them.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        intake = self._loaded_intake()
        pieces = count()

        def new_path(folder: Path) -> Path:
            shard = place.name.unit_shard(self.digest, number, next(pieces))
            return folder / shard.name

        # The shards of a failed unit stay: another process may have finished the unit.
        return write_shards(
            place,
            self.options,
            intake,
            new_path,
            documents,
            ending,
            arrange=arrange,
        )

    def attempt(
        self, place: Place, task: int, documents: Iterable[object]
    ) -> NewShards:
        """Write the documents of a task; every attempt has other names.

        Args:
            place: The place of the corpus.
            task: Number of the task.
            documents: Rows with an origin.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        number = task * _PER_TASK + secrets.randbelow(_PER_TASK)
        pieces = count()

        def new_path(folder: Path) -> Path:
            shard = place.name.unit_shard(self.digest, number, next(pieces))
            return folder / shard.name

        intake = self._loaded_intake()
        # Rows are read only with an `ending`; a task has nothing to add there.
        return write_shards(
            place, self.options, intake, new_path, documents, ending=dict
        )

    def _loaded_intake(self) -> Intake:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.options)
        tokenizer = self._tokenizer
        if tokenizer is not None and tokenizer.identity != self.tokenizer_identity:
            raise ValueError(
                f"{tokenizer.name}: is {tokenizer.identity} here and now, but "
                f"{self.tokenizer_identity} where and when this write began; copy "
                "that tokenizer to every machine, or write again"
            )
        return intake_of(self.options, tokenizer, self.kind)


def write_shards(
    place: Place,
    options: WriteOptions,
    intake: Intake,
    new_path: Callable[[Path], Path],
    documents: Iterable[object],
    ending: Callable[[], Mapping[str, object]] | None = None,
    *,
    arrange: Arrange | None = None,
    discards: bool = False,
) -> NewShards:
    """Write documents as shards at a place; return what the commit needs.

    Args:
        place: The place of the corpus.
        options: The arguments of the write.
        intake: Converts the documents.
        new_path: Returns the path of the next shard in a folder.
        documents: The documents; with `ending`, rows with an origin.
        ending: Returns metadata for the last shard, after the last document.
        arrange: Returns the documents in the order in which to write them.
        discards: Whether to delete finished shards after an error.

    Returns:
        The shards; none if there are no documents.
    """
    with place.files.stage() as folder:
        columns = None
        if options.fields.columns:
            columns = NewColumns(options.fields, place.name, folder.publish)
        series = ShardSeries(
            place.pattern,
            lambda: new_path(folder.path),
            options,
            intake,
            {},
            columns=columns,
            on_closed=folder.publish,
        )
        try:
            series.write_all(documents, ending, arrange)
        except NoDocumentsError:
            return NewShards()
        except BaseException:
            series.abort()
            if discards:
                paths = [*series.paths, *(columns.paths if columns else ())]
                place.discard_unlisted(path.name for path in paths)
            raise
    return NewShards(
        series.table,
        columns.tables if columns else {},
        intake.dtype,
        intake.kind,
        series.num_dropped,
        series.sync_s,
        series.bins,
    )
