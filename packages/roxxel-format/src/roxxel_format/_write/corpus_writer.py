"""Write a corpus: new shards under new names, then one commit.

Until the commit, no committed file changes. So a write that fails or is killed leaves
the old corpus; after the commit, the new one.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from roxxel_format._spec.manifest import Manifest, Version
from roxxel_format._store.corpus_name import own_names
from roxxel_format._store.local import claim, draft_path, drafted_name
from roxxel_format._store.locks import alone, writing
from roxxel_format._write.commit import (
    BEGUN,
    Committed,
    commit,
    read_committed,
    withdraw,
)
from roxxel_format._write.existing import (
    check_appendable,
    find_manifest,
    keep,
    print_notice,
)
from roxxel_format._write.intake import separator_items
from roxxel_format._write.leftovers import remove_leftovers
from roxxel_format._write.options import check_arguments, name_to_write
from roxxel_format._write.series import ShardSeries
from roxxel_format._write.summary import summary_of
from roxxel_format._write.units import Units
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from roxxel_format._spec.manifest import ShardTable
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import Exist, WriteOptions
    from roxxel_format._write.summary import WriteSummary


def write_corpus(
    filepath: str | tuple[str, ...],
    data: Iterable[object] | Units,
    options: WriteOptions,
    exist: Exist,
) -> WriteSummary:
    """Write documents, or units of them, as the corpus that a path names.

    See `Roxxel.write`. Units need a corpus with a manifest.
    """
    started = time.perf_counter()
    name = name_to_write(filepath)
    check_arguments(options, name, exist, data)
    intake = options.intake()
    arguments = options.recorded(intake.info)
    name.folder.mkdir(parents=True, exist_ok=True)
    kept = keep(name, arguments, started) if exist == "keep" else None
    if kept is not None:
        return kept
    if name.manifest is None:
        assert not isinstance(data, Units)  # noqa: S101 - they write several shards
        table, sync_s = _write_file(name, data, options, intake, arguments, exist)
    else:
        write = _Write(name, options, intake, arguments, exist)
        table, sync_s = write.run(data)
    return summary_of(
        table,
        str(intake.dtype),
        name.folder,
        kept=False,
        duration_s=time.perf_counter() - started,
        sync_s=sync_s,
    )


def _write_file(
    name: CorpusName,
    data: Iterable[object],
    options: WriteOptions,
    intake: Intake,
    arguments: dict[str, Any],
    exist: Exist,
) -> tuple[ShardTable, float]:
    """Write a corpus of one file, which needs no manifest.

    The lock on the draft lasts until the draft takes its name.
    """
    draft = draft_path(name.single)
    with alone(name):
        metadata = {"arguments": arguments}
        series = ShardSeries(
            name.pattern, lambda: name.single, options, intake, metadata
        )
        try:
            _check_free(name, exist)
            series.write_all(data)
        except BaseException:
            series.abort()
            if not series.paths:
                draft.unlink(missing_ok=True)
            raise
    return series.table, series.sync_s


class _Write:
    """One write of new shards, from the first document to the commit."""

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
        self._found = Committed(Manifest(), None)
        self._next_number: int | None = None
        self._began = False
        self._claimed: Path | None = None
        self._series = ShardSeries(name.pattern, self._new_path, options, intake, {})

    def run(self, data: Iterable[object] | Units) -> tuple[ShardTable, float]:
        """Write shards and commit them; return their table, and seconds of syncing."""
        if self._exist != "append":
            self._check_alone()
        with writing(self._name):
            self._found = find_manifest(self._name, self._exist)
            if self._exist == "append":
                self._check_appendable(self._found.manifest)
            elif self._exist != "replace" and self._found.manifest.versions:
                raise _already_there(self._name)
            try:
                table, sync_s = self._shards(data)
                self._commit(table)
            except BaseException:
                self._undo()
                raise
        if self._exist != "append":
            # `clean` removes later what cannot be removed now.
            with contextlib.suppress(OSError):
                remove_leftovers(self._name)
        return table, sync_s

    def _shards(self, data: Iterable[object] | Units) -> tuple[ShardTable, float]:
        if not isinstance(data, Units):
            self._series.write_all(data)
            return self._series.table, self._series.sync_s
        base = self._found.manifest.fingerprint
        job = data.job(self._name, self._options, self._intake, self._arguments, base)
        self._begin()
        return data.write(job), 0.0

    def _check_alone(self) -> None:
        """Check that no first write is in progress.

        Raises:
            BlockingIOError: A first write is in progress.
        """
        if not read_committed(self._name, replaces=self._exist == "replace").is_begun:
            return
        with alone(self._name):
            print_notice(
                f"{self._name.folder}: an earlier write was interrupted; writing it "
                "again, or the rest of it"
            )

    def _new_path(self) -> Path:
        """Claim the next free number, by creating its draft."""
        if self._next_number is None:
            self._begin()
        number = self._next_number or 0
        while True:
            path = self._name.shard(number)
            number += 1
            if not claim(draft_path(path)):
                continue
            if path.exists():
                draft_path(path).unlink()
                continue
            self._next_number = number
            self._claimed = draft_path(path)
            return path

    def _begin(self) -> None:
        """Commit an empty manifest, so that new shards alone are not a corpus."""
        if self._found.data is None:
            self._began = commit(self._name, self._found, Manifest())
            if not self._began and self._exist != "append":
                raise self._lost()
            # Another write made the manifest; only an append may build on it.
            self._found = BEGUN if self._began else read_committed(self._name)
        # Never the number of a listed shard, even if its file is gone.
        names = [*self._found.manifest.shards.names, *own_names(self._name)]
        numbers = [self._name.number(drafted_name(each) or each) for each in names]
        self._next_number = max((n + 1 for n in numbers if n is not None), default=0)

    def _commit(self, shards: ShardTable) -> None:
        while True:
            manifest = self._extended(self._found.manifest, shards)
            if commit(self._name, self._found, manifest):
                break
            if self._exist != "append":
                raise self._lost()
            self._found = read_committed(self._name)
        if self._exist == "replace":
            self._remove(
                self._found.file_names() - Committed(manifest, None).file_names()
            )

    def _extended(self, manifest: Manifest, shards: ShardTable) -> Manifest:
        """Return the manifest that makes the new shards part of the corpus."""
        if self._exist == "append":
            self._check_appendable(manifest)
        else:
            manifest = Manifest()
        if not manifest.versions:
            info = self._intake.info
            manifest = Manifest(
                dtype_name=self._intake.dtype,
                block_size=self._options.block_size,
                separator=self._separator() or (),
                tokenizer=info.to_dict() if info else None,
                kind=self._intake.kind,
            )
        twice = set(manifest.shards.names) & set(shards.names)
        if twice:
            raise FileExistsError(
                f"{self._name.folder / min(twice)}: another process committed the same "
                "units during this write; to append them twice, write again"
            )
        everything = manifest.shards + shards
        (fingerprint,) = everything.fingerprints([len(everything)])
        version = Version(len(everything), fingerprint, self._arguments)
        return replace(
            manifest,
            shards=everything,
            columns={
                name: column.followed_by(len(shards))
                for name, column in manifest.columns.items()
            },
            versions=(*manifest.versions, version),
        )

    def _check_appendable(self, manifest: Manifest) -> None:
        # The first call sets the intake's dtype, which the separator depends on.
        check_appendable(self._name, manifest, self._intake, None)
        check_appendable(self._name, manifest, self._intake, self._separator())

    def _separator(self) -> tuple[int | float, ...] | None:
        name = self._intake.dtype
        return None if name is None else separator_items(self._options.separator, name)

    def _lost(self) -> FileExistsError:
        return FileExistsError(
            f"{self._name.manifest}: another write was committed during this one, so "
            "this one was discarded; to replace the other, write again with "
            'exist="replace"'
        )

    def _undo(self) -> None:
        """Remove the new shards, unless the commit made them part of the corpus."""
        self._series.abort()
        # `clean` removes later what cannot be removed now.
        with contextlib.suppress(OSError, ShardError):
            if self._claimed is not None:
                self._claimed.unlink(missing_ok=True)
            names = {path.name for path in self._series.paths}
            self._remove(names - read_committed(self._name).file_names())
            # Shards of units stay for the same command, which continues with them.
            if self._began and not own_names(self._name):
                withdraw(self._name)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove files; `clean` removes later what cannot be removed now."""
        for name in names:
            with contextlib.suppress(OSError):
                (self._name.folder / name).unlink()


def _check_free(name: CorpusName, exist: Exist) -> None:
    if exist == "error" and name.single.exists():
        raise _already_there(name)


def _already_there(name: CorpusName) -> FileExistsError:
    return FileExistsError(
        f'{name.pattern}: the corpus exists already; use exist="keep", "replace" or '
        '"append"'
    )
