"""Write a corpus: new shards under new names, then one commit.

A write changes no committed file before its commit. So a write that fails or is killed
leaves the old corpus unchanged.
"""

from __future__ import annotations

import contextlib
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from roxxel_store.files import claim, draft_path, names_in

from roxxel_format._spec.manifest import Manifest
from roxxel_format._store.locks import alone, writing
from roxxel_format._write.commit import (
    BEGUN,
    Committed,
    commit,
    discard,
    existing_manifest,
    find_committed,
    leftovers,
    read_committed,
    remove_idle_locks,
    remove_leftovers,
    withdraw,
)
from roxxel_format._write.extension import (
    Extension,
    check_arguments,
    check_free,
    check_kept,
    print_notice,
    say_kept,
    summary_of,
)
from roxxel_format._write.intake import load_intake
from roxxel_format._write.new_columns import NewColumns
from roxxel_format._write.series import ShardSeries
from roxxel_format._write.target import name_to_write
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from roxxel_format._spec.tables import ShardTable
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import Exist, WriteOptions, WriteSummary


def write_corpus(
    filepath: str | tuple[str, ...],
    data: Iterable[object],
    options: WriteOptions,
    exist: Exist,
    *,
    says_ending: bool = False,
) -> WriteSummary:
    """Write documents as a corpus; see `Roxxel.write` and `load_intake`."""
    started = time.perf_counter()
    name = name_to_write(filepath, sharded=options.may_make_several(exist))
    check_arguments(options, name, exist, data)
    options, intake = load_intake(options, says_ending=says_ending)
    arguments = options.recorded(intake.tokenizer_identity)
    name.folder.mkdir(parents=True, exist_ok=True)
    if exist == "keep":
        kept = kept_on_disk(name, options, arguments, started)
        if kept is not None:
            say_kept(name.pattern, *kept, options, data)
            return kept[0]
    if name.manifest is None:
        table, sync_s = _write_file(name, data, options, intake, arguments, exist)
    else:
        table, sync_s = _Write(name, options, intake, arguments, exist).run(data)
    return summary_of(
        f"{name.folder}/",
        table,
        str(intake.dtype),
        started,
        sync_s=sync_s,
        num_dropped=intake.num_dropped,
    )


def kept_on_disk(
    name: CorpusName, options: WriteOptions, arguments: dict[str, Any], started: float
) -> tuple[WriteSummary, str] | None:
    """Return the summary of the existing corpus, and what could not be compared.

    None if no corpus exists. Needs no lock, so it works in a read-only folder. Raises
    FileExistsError if the corpus was made with other arguments or lacks a file.
    """
    manifest = existing_manifest(name)
    if manifest is None or not manifest.versions:
        return None
    limits = check_kept(manifest, options, arguments, name.pattern)
    missing = set(manifest.shards.names) - set(names_in(name.folder))
    if missing:
        raise FileExistsError(
            f"{name.folder / min(missing)}: a shard of the corpus is missing; restore "
            'it, or use exist="replace"'
        )
    dtype = str(manifest.dtype_name)
    summary = summary_of(f"{name.folder}/", manifest.shards, dtype, started, kept=True)
    return summary, limits


def _write_file(
    name: CorpusName,
    data: Iterable[object],
    options: WriteOptions,
    intake: Intake,
    arguments: dict[str, Any],
    exist: Exist,
) -> tuple[ShardTable, float]:
    """Write a corpus of one file, which needs no manifest."""
    path, draft = name.single, draft_path(name.single)
    with alone(name):  # Locks the draft until it is renamed.
        metadata = {"arguments": arguments}
        series = ShardSeries(
            name.pattern, lambda: (path, draft), options, intake, metadata
        )
        try:
            check_free(name.pattern, is_taken=exist == "error" and path.exists())
            series.write_all(data)
        except BaseException:
            series.abort()
            if not series.paths:
                draft.unlink(missing_ok=True)
            raise
    return series.table, series.sync_s


class _Write:
    """Writes new shards, from the first document to the commit."""

    def __init__(
        self,
        name: CorpusName,
        options: WriteOptions,
        intake: Intake,
        arguments: dict[str, Any],
        exist: Exist,
    ) -> None:
        self._name = name
        self._options = options
        self._intake = intake
        self._arguments = arguments
        self._exist: Exist = exist
        self._extension = Extension(
            name.pattern,
            f"{name.folder}/",
            options,
            intake,
            arguments,
            exist == "append",
            intake.recorded_tokenizer,
        )
        self._found = Committed(Manifest(), None)
        self._numbers: Iterator[int] | None = None
        self._began = False
        self._claimed: Path | None = None
        self._columns = NewColumns(options.fields, name)
        self._series = ShardSeries(
            name.pattern, self._new_path, options, intake, {}, columns=self._columns
        )

    def run(self, data: Iterable[object]) -> tuple[ShardTable, float]:
        """Write and commit shards; return their table and the seconds of flushing."""
        appends, replaces = self._exist == "append", self._exist == "replace"
        is_repeated = False
        if not appends and read_committed(self._name, replaces=replaces).is_begun:
            with alone(self._name):  # Raises if the first write is in progress.
                is_repeated = True
        try:
            with writing(self._name):
                self._prepare(is_repeated=is_repeated)
                try:
                    self._series.write_all(data)
                    table = self._series.table
                    self._commit(table)
                except BaseException:
                    self._undo()
                    raise
        except BaseException:
            remove_idle_locks(self._name)
            raise
        if not appends:
            # A later `clean` removes files that cannot be removed now.
            with contextlib.suppress(OSError, ShardError):
                remove_leftovers(self._name)
        return table, self._series.sync_s

    def _prepare(self, *, is_repeated: bool) -> None:
        """Find the manifest, and check that this write may change the corpus."""
        appends, replaces = self._exist == "append", self._exist == "replace"
        self._found = find_committed(self._name, replaces=replaces)
        if is_repeated:
            print_notice(
                f"{self._name.folder}: an earlier write was interrupted; repeating or "
                "continuing it"
            )
        if appends:
            self._extension.check_appendable(self._found.manifest)
        else:
            is_taken = not replaces and bool(self._found.manifest.versions)
            check_free(self._name.pattern, is_taken=is_taken)

    def _new_path(self) -> tuple[Path, Path]:
        """Create the draft of the next shard; return the shard's path and the draft."""
        numbers = self._numbers or self._begin()
        while True:
            path = self._name.shard(next(numbers))
            draft = draft_path(path)
            if not claim(draft):
                continue
            if path.exists():
                draft.unlink()
                continue
            self._claimed = draft
            return path, draft

    def _begin(self) -> Iterator[int]:
        """Commit an empty manifest if none exists; return free shard numbers."""
        # Commit now: this manifest says that the shards to come are of this write.
        if self._found.data is None:
            self._began = commit(self._name, self._found, Manifest())
            if not self._began and self._exist != "append":
                raise self._lost()
            # Another write made the manifest; only an append may extend it.
            self._found = BEGUN if self._began else read_committed(self._name)
        # The number of a listed shard is not free, even if its file is gone. Other
        # files do not count here: `wiki_20240101.rox` may be a corpus of one file, and
        # a shard `wiki_20240102.rox` would look like a second such corpus. `_new_path`
        # skips the numbers of existing files one by one.
        numbers = map(self._name.number, self._found.manifest.shards.names)
        first = max((n + 1 for n in numbers if n is not None), default=0)
        self._numbers = count(first)
        return self._numbers

    def _commit(self, shards: ShardTable) -> None:
        while True:
            manifest = self._extension.extended(
                self._found.manifest, shards, self._columns.tables
            )
            if commit(self._name, self._found, manifest):
                break
            if self._exist != "append":
                raise self._lost()
            self._found = read_committed(self._name)
        if self._exist == "replace":
            old = self._found.manifest.file_names()
            discard(self._name, old - manifest.file_names())

    def _lost(self) -> FileExistsError:
        return FileExistsError(
            f"{self._name.manifest}: another write was committed first, so this write "
            'was discarded; to replace the other, write again with exist="replace"'
        )

    def _undo(self) -> None:
        """Remove the new shards, unless the commit made them part of the corpus."""
        self._series.abort()
        # A later `clean` removes files that cannot be removed now.
        with contextlib.suppress(OSError, ShardError):
            if self._claimed is not None:
                self._claimed.unlink(missing_ok=True)
            paths = [*self._series.paths, *self._columns.paths]
            names = {path.name for path in paths}
            committed = read_committed(self._name).manifest
            discard(self._name, names - committed.file_names())
            if self._began and {*leftovers(self._name)} <= {self._name.manifest}:
                withdraw(self._name)
