"""Merge the small shards of a corpus into large ones.

Consecutive shards are merged. A full shard, or one without a neighbour to merge with,
keeps its file. So does a shard of a preparation whose plan still exists: when its
command is repeated, it learns from the shards' names that they are committed.

Tokens, documents and columns do not change, so all versions stay as they are: a run
that began with one can resume.

The new shards are committed before the old files are deleted. An append that was
committed meanwhile stays: its shards follow the merged ones.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from roxxel_store.files import sync_folder

from roxxel_format._read.columns import END_SIZE, ColumnFiles
from roxxel_format._read.opening import open_corpus
from roxxel_format._spec.input_totals import merged_inputs
from roxxel_format._spec.layout import TEXTS, item_size, shard_table
from roxxel_format._spec.manifest import BinTable, ColumnTable, ShardTable
from roxxel_format._version import __version__
from roxxel_format._write.new_columns import ColumnOutput
from roxxel_format._write.place import place_of
from roxxel_format._write.shard_writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    import numpy.typing as npt
    from roxxel_store.place import Stage

    from roxxel_format._read.contents import Contents
    from roxxel_format._spec.layout import Layout, Tokens
    from roxxel_format._spec.manifest import Manifest, Version
    from roxxel_format._write.place import Place

_ColumnFile: TypeAlias = "tuple[str | None, int, str]"
"""Name, size and digest of the file of a column; None, 0 and "" without one."""

FULL_SHARD_BYTES = 1 << 30
"""Maximum size of a merged shard by default."""

_CHUNK_BYTES = 1 << 22
_MOST_SKIPPED = 100


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction.

    Attributes:
        num_merged: Shards that were merged; 0 if there was nothing to do.
        num_written: Shards that replace them.
        num_bytes: Size of the new shards and columns.
        num_shards: Shards of the corpus now.
        num_versions: Versions of the corpus, which all stay readable.
        fingerprint: Fingerprint of the current version, which stays the same.

    Example:
        >>> corpus = Roxxel("daily_*.rox")
        >>> for day in range(3):
        ...     written = corpus.write([[day]], exist="append")
        >>> done = corpus.compact()
        >>> done.num_merged, done.num_shards, done.num_versions
        (3, 1, 3)
    """

    num_merged: int
    num_written: int
    num_bytes: int
    num_shards: int
    num_versions: int
    fingerprint: str


def compact(
    filepath: str | tuple[str, ...],
    max_shard_bytes: int,
    timeout_s: float,
    progress: Callable[[int, int], None] | None = None,
) -> Compaction:
    """Merge small shards; see `Roxxel.compact`."""
    place = place_of(filepath, timeout_s).as_place("there is nothing to merge")
    # `enter` makes the lock file of a first write, by which shards whose manifest is
    # lost would be leftovers. So a corpus must exist.
    contents = open_corpus(filepath, None, timeout_s)
    manifest = contents.manifest
    with ExitStack() as resources:
        place.enter(resources)
        groups = _groups(manifest, max_shard_bytes, place.planned_shards(manifest))
        new = _NewFiles(place, contents, manifest, groups, progress)
        if not new.merged:
            return _result(manifest, groups, 0)
        try:
            new.write_all()
            place.check_present(new.sizes)
            committed = _commit(place, manifest, new)
        except BaseException:
            place.discard_unlisted(new.sizes)
            raise
        # An append whose answer was lost may have listed a file again.
        place.discard_unlisted(manifest.file_names() - committed.file_names())
    return _result(committed, groups, sum(new.sizes.values()))


def _result(manifest: Manifest, groups: Sequence[range], num_bytes: int) -> Compaction:
    merged = [each for each in groups if len(each) > 1]
    return Compaction(
        sum(map(len, merged)),
        len(merged),
        num_bytes,
        len(manifest.shards),
        len(manifest.versions),
        str(manifest.fingerprint),
    )


def _groups(
    manifest: Manifest, max_shard_bytes: int, kept: Container[str]
) -> list[range]:
    """Return consecutive shards to merge, in order; a group of one shard stays.

    A shard of half the size or more is full: otherwise each small shard after it would
    cause another copy of all of it. Shards with different columns are not merged, and
    those in `kept` stay as if they were full.
    """
    groups: list[range] = []
    size, columns = 0, ()
    rows = zip(manifest.shards.names, manifest.shards.num_bytes, strict=True)
    for number, (name, num_bytes) in enumerate(rows):
        present = tuple(
            bool(table.names[number]) for table in manifest.columns.values()
        )
        is_full = num_bytes >= max_shard_bytes / 2 or name in kept
        joins = groups and not is_full and present == columns
        if joins and size + num_bytes <= max_shard_bytes:
            groups[-1] = range(groups[-1].start, number + 1)
            size += num_bytes
        else:
            groups.append(range(number, number + 1))
            size = max_shard_bytes if is_full else num_bytes
        columns = present
    return groups


class _NewFiles:
    """The shards and columns that replace groups of shards.

    `merged` are the groups of several shards; `sizes` the sizes of the new files.
    """

    def __init__(
        self,
        place: Place,
        contents: Contents,
        manifest: Manifest,
        groups: Sequence[range],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.sizes: dict[str, int] = {}
        self.groups = groups
        self.merged = [each for each in groups if len(each) > 1]
        self._place = place
        self._contents = contents
        self._manifest = manifest
        self._progress = progress
        self._done = 0
        tokens = manifest.shards.num_tokens
        size = item_size(str(manifest.dtype_name))
        self._total = sum(tokens[each] for each in chain(*self.merged)) * size
        self._rows: dict[int, ShardTable] = {}  # by first shard of the group
        self._columns: dict[tuple[str, int], _ColumnFile] = {}

    def write_all(self) -> None:
        new_path = self._place.new_shards()
        with self._place.files.stage() as folder:
            for group in self.merged:
                layout, path = self._write_shard(group, new_path, folder.path)
                self.sizes[path.name] = layout.sections.stop
                folder.publish(path)
                self._rows[group.start] = shard_table([path.name], [layout])
                for name, table in self._manifest.columns.items():
                    if table.names[group.start] is not None:
                        self._write_column(name, table, path, group, folder)

    def joined(self, current: Manifest) -> Manifest:
        """Return a manifest with the new files, and everything appended since."""
        count = len(self._manifest.shards)
        appended = range(count, len(current.shards))
        groups = [*self.groups, *(range(each, each + 1) for each in appended)]
        shards = ShardTable.chained(
            self._rows.get(group.start) or _one(current.shards, group.start)
            for group in groups
        )
        columns = {
            name: self._joined_column(name, table, groups)
            for name, table in current.columns.items()
        }
        bins = current.bins
        if bins is not None:
            padding, cut = (
                [sum(each[group.start : group.stop]) for group in groups]
                for each in (bins.padding, bins.cut)
            )
            bins = BinTable(bins.unit, padding, cut)
        return replace(
            current,
            shards=shards,
            columns=columns,
            bins=bins,
            versions=_with_digests(current),
        )

    def _joined_column(
        self, name: str, table: ColumnTable, groups: Sequence[range]
    ) -> ColumnTable:
        files = [
            self._columns.get((name, at))
            or (table.names[at], table.num_bytes[at], table.digests[at])
            for at in (group.start for group in groups)
        ]
        names, sizes, digests = zip(*files, strict=True)
        return ColumnTable(table.per, table.dtype, names, sizes, digests)

    def _write_shard(
        self,
        group: range,
        new_path: Callable[[Path], Path],
        folder: Path,
    ) -> tuple[Layout, Path]:
        manifest, contents = self._manifest, self._contents
        block_size = contents.open_shard(group.start).layout.head.block_size
        path = new_path(folder)
        writer = ShardWriter(
            path,
            manifest.dtype_name,
            manifest.appended,
            block_size=block_size,
            metadata=self._metadata(group),
        )
        try:
            for number in group:
                self._extend(writer, number)
            return writer.close(), path
        except BaseException:
            writer.abort()
            raise

    def _extend(self, writer: ShardWriter, number: int) -> None:
        shard = self._contents.open_shard(number, checked=True)
        num_tokens = shard.layout.num_tokens
        size = shard.layout.head.item_size
        step = _CHUNK_BYTES // size
        piece = shard.piece()

        def chunks() -> Iterator[Tokens]:
            for start in range(0, num_tokens, step):
                stop = min(start + step, num_tokens)
                if stop < num_tokens:
                    following = min(stop + step, num_tokens)
                    shard.will_need(stop, following, is_urgent=False)
                yield piece[start:stop]
                self._advance((stop - start) * size)

        writer.extend_stored(chunks(), shard.document_ends)

    def _metadata(self, group: range) -> dict[str, Any]:
        """Return the metadata of the first shard, with the counts of all shards."""
        every = [self._contents.open_shard(number).metadata() for number in group]
        found = {**every[0], "created_by": f"roxxel-format {__version__}"}
        # By "arguments", a reader knows a corpus of one file, which may be adopted.
        for name in ("arguments", "input_files", "skipped", "padding", "cut"):
            found.pop(name, None)
        inputs = merged_inputs(
            (self._contents.writes[number], each.get("input_files"))
            for number, each in zip(group, every, strict=True)
        )
        if inputs:
            found["input_files"] = inputs.record()
        found |= _skipped_of(every)
        bins = self._manifest.bins
        if bins is not None:
            of_group = bins.of(group)
            found["padding"], found["cut"] = of_group.num_padding, of_group.num_cut
        return found

    def _write_column(
        self, name: str, table: ColumnTable, shard: Path, group: range, folder: Stage
    ) -> None:
        unique = secrets.token_hex(4)
        path = shard.with_name(self._place.name.column(shard.name, name, unique).name)
        files = ColumnFiles(name, self._contents)
        with ColumnOutput(path) as output:
            for data in _values(files, table, group):
                output.write(data)
            size, digest = output.rename()
        sync_folder(path.parent)
        self.sizes[path.name] = size
        folder.publish(path)
        self._columns[name, group.start] = path.name, size, digest

    def _advance(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _skipped_of(every: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata of what was left out of several shards, if anything was."""
    number, errors = 0, list[str]()
    for each in every:
        match each.get("skipped"):
            case {"number": int(count), "errors": [*texts]}:
                number += count
                errors += texts
            case _:  # A user's own metadata may have this name.
                pass
    if not number:
        return {}
    return {"skipped": {"number": number, "errors": errors[:_MOST_SKIPPED]}}


def _values(files: ColumnFiles, table: ColumnTable, group: range) -> Iterator[bytes]:
    ends: list[npt.NDArray[np.uint64]] = []
    first = np.uint64(0)
    for number in group:
        file = files.open(number, is_verified=True)
        size = file.num_bytes
        if table.dtype == TEXTS:
            size -= files.num_items[number] * END_SIZE
            of_file = np.frombuffer(file.read(size, file.num_bytes), "<u8")
            ends.append(of_file + first)
            first += np.uint64(size)
        for start in range(0, size, _CHUNK_BYTES):
            yield file.read(start, min(start + _CHUNK_BYTES, size))
    for each in ends:
        yield each.tobytes()


def _one(shards: ShardTable, number: int) -> ShardTable:
    return ShardTable(*([value] for value in shards.row(number)))


def _commit(place: Place, manifest: Manifest, new: _NewFiles) -> Manifest:
    """Commit the new files in place of those of a manifest; return the new manifest.

    Shards that were appended meanwhile stay.

    Raises:
        FileExistsError: Another write changed what was merged.
    """
    while True:
        place.begin()
        current = place.found
        if new.sizes.keys() <= current.file_names():
            return current  # Committed by us, and the answer was lost.
        if not _continues(current, manifest):
            raise FileExistsError(
                f"{place.manifest}: another write replaced the corpus or a column "
                "meanwhile, so nothing was merged; compact again"
            )
        committed = new.joined(current)
        if place.commit(committed):
            return committed


def _continues(current: Manifest, manifest: Manifest) -> bool:
    """Return whether all files of a manifest are still those of its shards."""
    count = len(manifest.shards)
    if [*current.shards.names[:count]] != [*manifest.shards.names]:
        return False
    files = {name: table.first(count) for name, table in current.columns.items()}
    written = {name: table for name, table in files.items() if any(table.names)}
    return written == manifest.columns_of(count)


def _with_digests(manifest: Manifest) -> tuple[Version, ...]:
    """Return the versions with the digests of their columns.

    The digests follow from the files that are merged now; a run may have recorded them.
    A column may be newer than an earlier compaction.
    """
    versions = manifest.versions
    counts = manifest.nums_shards(versions)
    of_files = {
        name: table.value_digests(counts) for name, table in manifest.columns.items()
    }
    return tuple(
        replace(
            version,
            columns={
                name: version.columns.get(name) or digests[at]
                for name, digests in of_files.items()
                if name in version.columns or digests[at]
            },
        )
        for at, version in enumerate(versions)
    )
