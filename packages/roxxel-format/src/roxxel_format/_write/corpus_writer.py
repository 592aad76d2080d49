"""Write a corpus: new shards under new names, then one commit.

A write changes no committed file before its commit. So a write that fails or is killed
leaves the old corpus unchanged.
"""

from __future__ import annotations

import contextlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from roxxel_format._spec.layout import check_block_size
from roxxel_format._spec.manifest import Manifest, Version
from roxxel_format._store.local import claim, draft_path, names_in
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
from roxxel_format._write.intake import load_intake, separator_items
from roxxel_format._write.options import (
    Separator,
    WriteSummary,
    difference,
)
from roxxel_format._write.series import ShardSeries
from roxxel_format._write.shard_writer import shard_size_bound
from roxxel_format._write.target import name_to_write
from roxxel_format.errors import NotAShardError, OldShardError, ShardError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path

    from roxxel_format._spec.tables import ShardTable
    from roxxel_format._store.corpus_name import CorpusName
    from roxxel_format._write.intake import Intake
    from roxxel_format._write.options import Exist, WriteOptions


class Units(ABC):
    """Documents in groups, called units; each unit has its own shards.

    Several processes may write units of one corpus at the same time.
    """

    @abstractmethod
    def begin(
        self,
        name: CorpusName,
        options: WriteOptions,
        intake: Intake,
        arguments: Mapping[str, Any],
        base: str | None,
    ) -> Callable[[], ShardTable]:
        """Set dtype and kind of `intake`; return a function that writes the shards.

        `base` is the fingerprint of the corpus before the write.
        """


def write_corpus(
    filepath: str | tuple[str, ...],
    data: Iterable[object] | Units,
    options: WriteOptions,
    exist: Exist,
    *,
    says_ending: bool = False,
) -> WriteSummary:
    """Write documents as a corpus; see `Roxxel.write`.

    `data` is an iterable of documents, or `Units` for a corpus with a manifest. With
    `says_ending`, print how documents end if the tokenizer determines the separator.
    """
    started = time.perf_counter()
    name = name_to_write(filepath, sharded=options.may_make_several(exist))
    _check_arguments(options, name, exist, data)
    is_default = options.separator is Separator.OF_TOKENIZER
    options, intake = load_intake(options)
    if is_default and says_ending and intake.tokenizer is not None:
        _print_notice(intake.tokenizer.ending())
    arguments = options.recorded(intake.tokenizer_identity)
    name.folder.mkdir(parents=True, exist_ok=True)
    if exist == "keep":
        with _or_replace(name):
            kept = _kept(name, options, arguments, started)
        if kept is not None:
            return kept
    if name.manifest is None:
        assert not isinstance(data, Units)  # noqa: S101 - they write several shards
        table, sync_s = _write_file(name, data, options, intake, arguments, exist)
    else:
        table, sync_s = _Write(name, options, intake, arguments, exist).run(data)
    return _summary(name, table, str(intake.dtype), started, sync_s=sync_s)


@contextlib.contextmanager
def _or_replace(name: CorpusName) -> Generator[None]:
    """Add the remedy for a write to the error for a file that is not a shard."""
    try:
        yield
    except NotAShardError as error:
        problem, _, _ = str(error).partition("; ")
        remedy = 'pass exist="replace" to write the corpus in its place'
        if name.manifest is not None:
            problem += f", but its name is that of a shard of {name.pattern}"
            remedy = "move the file elsewhere"
        if isinstance(error, OldShardError):
            remedy = (
                "convert the old shards first, with `roxxel-format write "
                '"new_*.rox" FILES --separator SEP`'
            )
        raise type(error)(
            f"{problem}; {remedy}, or write under another name"
        ) from error


def _check_arguments(
    options: WriteOptions, name: CorpusName, exist: str, data: object
) -> None:
    """Check the arguments of a write before any file changes."""
    if exist not in ("keep", "replace", "append", "error"):
        raise ValueError(
            f'exist must be "keep", "replace", "append" or "error", got {exist!r}'
        )
    if isinstance(data, (str, bytes, bytearray, Mapping)):
        kind = type(cast("object", data)).__name__
        raise TypeError(
            f"data is one {kind}; pass an iterable of documents, such as [data]"
        )
    check_block_size(options.block_size)
    limit = options.max_shard_bytes
    if limit is not None:
        least = shard_size_bound(8, options.block_size) + 2 * options.block_size
        if limit < least:
            raise ValueError(
                f"max_shard_bytes={limit} is too small for one document; use at "
                f"least {least}"
            )
    if name.manifest is None and options.may_make_several(exist):
        raise ValueError(
            f'{name.single}: is one file, but max_shard_bytes or exist="append" makes '
            f'shards such as "{name.prefix}_00000.rox"; delete the file first, or use '
            f'a pattern such as "{name.prefix}_*.rox"'
        )


def _kept(
    name: CorpusName, options: WriteOptions, arguments: dict[str, Any], started: float
) -> WriteSummary | None:
    """Return the summary of the existing corpus; None if no corpus exists.

    Needs no lock, so it works in a read-only folder. Raises FileExistsError if the
    corpus was made with other arguments or lacks a file.
    """
    manifest = existing_manifest(name)
    if manifest is None or not manifest.versions:
        return None
    inputs = None if isinstance(options.inputs, str) else options.inputs
    if inputs is not None and inputs.stream is not None:
        raise FileExistsError(
            f"{name.pattern}: the corpus exists already, and {inputs.stream} cannot "
            'be compared with its inputs; use exist="append" or exist="replace", or '
            "write elsewhere"
        )
    recorded = manifest.versions[-1].arguments
    limits = ""
    if inputs is not None and recorded.get("inputs") == inputs.older:
        arguments = arguments | {"inputs": inputs.older}
        limits = (
            "; its inputs were compared only by name, size and time, because the "
            "corpus does not record more"
        )
    if recorded != arguments:
        raise FileExistsError(
            f"{name.pattern}: {difference(recorded, arguments, inputs)}; use "
            'exist="replace" or exist="append", or write elsewhere'
        )
    missing = set(manifest.shards.names) - set(names_in(name.folder))
    if missing:
        raise FileExistsError(
            f"{name.folder / min(missing)}: a shard of the corpus is missing; restore "
            'it, or use exist="replace"'
        )
    dtype = str(manifest.dtype_name)
    summary = _summary(name, manifest.shards, dtype, started, kept=True)
    _print_notice(f"{name.folder}: {summary}{limits}")
    return summary


def _summary(
    name: CorpusName,
    shards: ShardTable,
    dtype: str,
    started: float,
    *,
    kept: bool = False,
    sync_s: float = 0.0,
) -> WriteSummary:
    (fingerprint,) = shards.fingerprints([len(shards)])
    return WriteSummary(
        paths=tuple(str(name.folder / each) for each in shards.names),
        num_documents=sum(shards.own_documents()),
        num_tokens=sum(shards.num_tokens),
        num_bytes=sum(shards.num_bytes),
        dtype=dtype,
        fingerprint=fingerprint,
        kept=kept,
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
    """Write a corpus of one file, which needs no manifest."""
    path, draft = name.single, draft_path(name.single)
    with alone(name):  # Locks the draft until it is renamed.
        metadata = {"arguments": arguments}
        series = ShardSeries(
            name.pattern, lambda: (path, draft), options, intake, metadata
        )
        try:
            _check_free(name, is_taken=exist == "error" and path.exists())
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
        self._found = Committed(Manifest(), None)
        self._numbers: Iterator[int] | None = None
        self._began = False
        self._claimed: Path | None = None
        self._series = ShardSeries(name.pattern, self._new_path, options, intake, {})

    def run(self, data: Iterable[object] | Units) -> tuple[ShardTable, float]:
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
                    table = self._shards(data)
                    self._commit(table)
                except BaseException:
                    self._undo()
                    raise
        except BaseException:
            remove_idle_locks(self._name)
            raise
        if not appends:
            # A later `clean` removes files that cannot be removed now.
            with contextlib.suppress(OSError):
                remove_leftovers(self._name)
        return table, self._series.sync_s

    def _prepare(self, *, is_repeated: bool) -> None:
        """Find the manifest, and check that this write may change the corpus."""
        appends, replaces = self._exist == "append", self._exist == "replace"
        with _or_replace(self._name):
            self._found = find_committed(self._name, replaces=replaces, appends=appends)
        if is_repeated:
            _print_notice(
                f"{self._name.folder}: an earlier write was interrupted; repeating or "
                "continuing it"
            )
        if appends:
            self._check_appendable(self._found.manifest)
        else:
            is_taken = not replaces and bool(self._found.manifest.versions)
            _check_free(self._name, is_taken=is_taken)

    def _shards(self, data: Iterable[object] | Units) -> ShardTable:
        if not isinstance(data, Units):
            self._series.write_all(data)
            return self._series.table
        base = self._found.manifest.fingerprint
        write = data.begin(
            self._name, self._options, self._intake, self._arguments, base
        )
        self._begin()
        return write()

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
        # Commit now: readers treat numbered shards without a manifest as a corpus.
        if self._found.data is None:
            self._began = commit(self._name, self._found, Manifest())
            if not self._began and self._exist != "append":
                raise self._lost()
            # Another write made the manifest; only an append may extend it.
            self._found = BEGUN if self._began else read_committed(self._name)
        # The number of a listed shard is not free, even if its file is gone. Numbers of
        # other files are passed over one by one (`_new_path`): the next number after
        # `wiki_20240101.rox`, a corpus of one file, would be the name of another.
        numbers = map(self._name.number, self._found.manifest.shards.names)
        first = max((n + 1 for n in numbers if n is not None), default=0)
        self._numbers = count(first)
        return self._numbers

    def _commit(self, shards: ShardTable) -> None:
        while True:
            manifest = self._extended(self._found.manifest, shards)
            if commit(self._name, self._found, manifest):
                break
            if self._exist != "append":
                raise self._lost()
            self._found = read_committed(self._name)
        if self._exist == "replace":
            old = self._found.manifest.file_names()
            discard(self._name, old - manifest.file_names())

    def _extended(self, manifest: Manifest, shards: ShardTable) -> Manifest:
        """Return the manifest with the new shards."""
        if self._exist == "append":
            self._check_appendable(manifest)
        else:
            manifest = Manifest()
        if not manifest.versions:
            assert self._intake.dtype is not None  # noqa: S101 - it has seen a document
            manifest = Manifest(
                dtype_name=self._intake.dtype,
                block_size=self._options.block_size,
                separator=separator_items(self._options.separator, self._intake.dtype),
                tokenizer=self._intake.recorded_tokenizer,
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
        """Check that the documents fit the corpus; set the intake's dtype and kind."""
        intake, what = self._intake, self._name.pattern
        stored, kind = manifest.dtype_name, manifest.kind
        if stored is None:  # No version is committed yet.
            return
        if intake.dtype not in {None, stored}:
            raise ValueError(
                f"{what}: holds {stored}, so {intake.dtype} cannot be appended; "
                "leave dtype and vocab_size out, or write another corpus"
            )
        intake.dtype = stored
        if kind is not None:
            if intake.kind not in {None, kind}:
                raise ValueError(
                    f"{what}: holds {kind}, so {intake.kind} cannot be "
                    "appended; write text and ready-made tokens into different corpora"
                )
            intake.kind = kind
        if manifest.tokenizer != intake.recorded_tokenizer:
            raise ValueError(
                f"{what}: was written with another tokenizer; append with the same "
                "tokenizer, or write another corpus"
            )
        separator = separator_items(self._options.separator, stored)
        if separator != tuple(manifest.separator):
            raise ValueError(
                f"{what}: its documents end with {_ending(manifest.separator)}, "
                f"the new ones with {_ending(separator)}; append with the same "
                "separator, or write another corpus"
            )

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
            names = {path.name for path in self._series.paths}
            committed = read_committed(self._name).manifest
            discard(self._name, names - committed.file_names())
            # Shards of units stay, so that the same command can continue with them.
            if self._began and {*leftovers(self._name)} <= {self._name.manifest}:
                withdraw(self._name)


def _ending(separator: Sequence[int | float]) -> str:
    return f"the separator {list(separator)}" if separator else "no separator"


def _check_free(name: CorpusName, *, is_taken: bool) -> None:
    if is_taken:
        raise FileExistsError(
            f'{name.pattern}: the corpus exists already; use exist="keep", '
            'exist="replace" or exist="append"'
        )


def _print_notice(line: str) -> None:
    sys.stderr.write(line + "\n")
