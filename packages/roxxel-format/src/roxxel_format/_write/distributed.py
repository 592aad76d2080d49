"""Write one corpus with tasks on many machines, and commit it once.

The driver begins the write, and sends a `Job` to the tasks. A task writes complete
shards and returns their rows for the manifest. The driver commits only the rows that it
received. A scheduler may run a task twice, even at the same time. No two attempts write
under the same name, and the corpus lists only the attempts whose rows the driver
received. All names begin with the job, so the driver finds and deletes the other
shards.
"""

from __future__ import annotations

import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from roxxel_store.files import claim, draft_path, drafted_name

from roxxel_format._spec.tables import ColumnTable, ShardTable, sizes_of
from roxxel_format._store.urls import is_url
from roxxel_format._write.casting import DocumentError, DocumentTypeError
from roxxel_format._write.extension import (
    Extension,
    check_arguments,
    summary_of,
)
from roxxel_format._write.intake import intake_of, load_intake, load_tokenizer
from roxxel_format._write.new_columns import NewColumns, joined_columns
from roxxel_format._write.place import Publication, place_of
from roxxel_format._write.series import NoDocumentsError, ShardSeries
from roxxel_format._write.target import name_to_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary

# The number in a shard's name is the number of the task and nine random digits.
_PER_TASK = 10**9


@dataclass(frozen=True)
class TaskShards:
    """The complete shards of one task, with their columns, item type and kind.

    A task without documents has no shards; its item type and kind are None.
    """

    task: int
    shards: ShardTable
    columns: Mapping[str, ColumnTable] = field(default_factory=dict[str, ColumnTable])
    dtype: str | None = None
    kind: str | None = None
    num_dropped: int = 0


@dataclass(frozen=True)
class Job:
    """The picklable data that every task of a write needs.

    `target` is the corpus: its names in a folder that all machines share, or the URL of
    its pattern in a bucket. If `options.dtype` and `kind` are None, the first document
    of each task determines them, and the commit compares them.
    """

    digest: str
    target: CorpusName | str
    options: WriteOptions
    kind: str | None
    tokenizer_identity: str | None

    def write(self, task: int, documents: Iterable[object], what: str) -> TaskShards:
        """Write the documents of one task; `what` names their source in errors.

        Raises:
            ValueError: A document is invalid, or this machine has another tokenizer.
            OSError: The shards cannot be written.
        """
        tokenizer = load_tokenizer(self.options)
        if tokenizer is not None and tokenizer.identity != self.tokenizer_identity:
            raise ValueError(
                f"{tokenizer.name}: is {tokenizer.identity} on this machine, but "
                f"{self.tokenizer_identity} on the driver's; copy the driver's "
                "tokenizer to every machine"
            )
        options = self.options
        intake = intake_of(options, tokenizer, self.kind)
        with ExitStack() as resources:
            # While a task holds the lock of a place, `clean` does not remove shards.
            place = place_of(self.target, resources)
            folder = resources.enter_context(place.shards())
            columns = NewColumns(options.fields, place.name, folder.publish)
            series = ShardSeries(
                place.pattern,
                lambda: self._new_path(place.name, folder.path, task),
                options,
                intake,
                {},
                columns=columns,
                on_closed=folder.publish,
            )
            try:
                series.write_all(documents)
            except NoDocumentsError:
                return TaskShards(task, ShardTable())
            except (DocumentError, DocumentTypeError) as error:
                series.abort()
                raise ValueError(
                    f"{what}: document {error.document}{error.problem}"
                ) from error
            except BaseException:
                series.abort()
                raise
        return TaskShards(
            task,
            series.table,
            columns.tables,
            intake.dtype,
            intake.kind,
            intake.num_dropped,
        )

    def _new_path(self, name: CorpusName, folder: Path, task: int) -> tuple[Path, Path]:
        """Create the draft of a new shard; return the shard's path and the draft."""
        while True:
            number = task * _PER_TASK + secrets.randbelow(_PER_TASK)
            path = folder / name.unit_shard(self.digest, number, 0).name
            draft = draft_path(path)
            if not claim(draft):
                continue
            if not path.exists():
                return path, draft
            draft.unlink()


class DistributedWrite:
    """The driver's part of a write: from the checks to the commit.

    The constructor checks the arguments and begins the write. Call `commit` or
    `abandon` once. If `commit` raises, also call `abandon`.

    Attributes:
        job: The data that the tasks need.
    """

    def __init__(
        self,
        filepath: str,
        options: WriteOptions,
        exist: Exist,
        *,
        dtype: str | None = None,
        kind: str | None = None,
    ) -> None:
        """Begin; `dtype` is used if neither the options nor the corpus have one."""
        self._started = time.perf_counter()
        with ExitStack() as resources:
            target: CorpusName | str = filepath
            if not is_url(filepath):
                target = name_to_write(filepath, sharded=True)
                if target.manifest is None:
                    raise ValueError(
                        f"{target.single}: is one file, but several tasks write "
                        f'several shards; write to a pattern such as "{target.prefix}_'
                        '*.rox"'
                    )
            self._place = place = place_of(target, resources)
            self._corpus = filepath
            check_arguments(options, place.name, exist, None)
            options, self._intake = load_intake(options)
            identity = self._intake.tokenizer_identity
            extension = Extension(
                filepath,
                place.folder,
                options,
                self._intake,
                options.recorded(identity),
                exist == "append",
                self._intake.recorded_tokenizer,
            )
            found = place.begin(replaces=exist == "replace").manifest
            if exist == "append":
                extension.check_appendable(found)
            elif exist == "error" and found.versions:
                raise FileExistsError(
                    f'{filepath}: the corpus exists already; use exist="replace" or '
                    'exist="append", or write elsewhere'
                )
            self._publication = Publication(
                place, found, extension.extended, appends=extension.appends
            )
            self.job = Job(
                secrets.token_hex(6),
                place.pattern if isinstance(target, str) else target,
                replace(options, dtype=self._intake.dtype or dtype),
                self._intake.kind or kind,
                identity,
            )
            self._resources = resources.pop_all()

    def commit(self, results: Iterable[TaskShards]) -> WriteSummary:
        """Commit the shards of all tasks, in the order of the tasks.

        Raises:
            FileExistsError: Another write was committed first.
            FileNotFoundError: A shard is missing, for example because a task wrote to
                a disk that the driver does not share.
            ValueError: The tasks have no documents, or their item types or kinds
                differ.
        """
        by_task: dict[int, TaskShards] = {}
        for each in results:
            by_task.setdefault(each.task, each)
        done = [by_task[task] for task in sorted(by_task) if len(by_task[task].shards)]
        if not done:
            raise ValueError(
                f"{self._corpus}: there are no documents to write; check the filters "
                "of the pipeline"
            )
        self._check_agreement(done)
        self._intake.dtype, self._intake.kind = done[0].dtype, done[0].kind
        table = sum((each.shards for each in done[1:]), done[0].shards)
        columns = joined_columns(each.columns for each in done)
        self._publication.commit(table, columns)
        self._discard_others(set(sizes_of(table, columns)))
        self._resources.close()
        folder, dtype = self._place.folder, str(done[0].dtype)
        num_dropped = sum(each.num_dropped for each in done)
        return summary_of(folder, table, dtype, self._started, num_dropped=num_dropped)

    def abandon(self) -> None:
        """Delete the shards of this write, unless the corpus may list them."""
        with self._resources:
            if not self._publication.may_be_committed:
                self._discard_others(set())
                self._place.undo_begin()

    def _check_agreement(self, done: Sequence[TaskShards]) -> None:
        first = done[0]
        for each in done:
            if each.kind != first.kind:
                raise ValueError(
                    f"{self._corpus}: task {first.task} wrote {first.kind}, but task "
                    f"{each.task} wrote {each.kind}; write text and ready-made tokens "
                    "into different corpora"
                )
            if each.dtype != first.dtype:
                raise ValueError(
                    f"{self._corpus}: task {first.task} wrote {first.dtype}, but task "
                    f"{each.task} wrote {each.dtype}; pass dtype or vocab_size"
                )

    def _discard_others(self, kept: set[str]) -> None:
        """Delete the files of this write, except those in `kept`."""
        name = self._place.name
        start = f"{name.prefix}{self.job.digest}_"
        self._place.discard(
            each
            for each in self._place.sizes()
            if (drafted_name(each) or each).startswith(start) and each not in kept
        )
