"""Copy a corpus, with its versions and columns, between disks and buckets."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from roxxel_format._corpus_name import SUFFIX
from roxxel_format._read.columns import digest_of
from roxxel_format._read.files import copy_bytes
from roxxel_format._read.opening import open_corpus
from roxxel_format._read.shard import LOCAL, ShardMap
from roxxel_format._read.verify import damage_of_shard
from roxxel_format._spec.kept_tokenizer import digest_of_tokenizer, parse_tokenizer
from roxxel_format._spec.manifest import Manifest, Version
from roxxel_format._spec.manifest_file import pack_manifest
from roxxel_format._write.place import place_of
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from roxxel_format._read.contents import Contents
    from roxxel_format._spec.manifest import ColumnTable
    from roxxel_format._write.place import Place
    from roxxel_format._write.summary import WriteSummary

_THREADS = 4


@dataclass(frozen=True)
class _File:
    """A file to copy: source, name in the copy, size, and a function that checks it."""

    path: str
    name: str
    num_bytes: int
    check: Callable[[Path], None]


def copy_corpus(
    source: str | tuple[str, ...],
    target: str | os.PathLike[str],
    exist: Literal["error", "replace"],
    timeout_s: float,
    progress: Callable[[int, int], None] | None = None,
) -> WriteSummary:
    """Copy a corpus; see `Roxxel.copy_to`."""
    # Imported here because it loads logging, which only a copy needs.
    from concurrent.futures import ThreadPoolExecutor

    if exist not in ("error", "replace"):
        raise ValueError(f'exist must be "error" or "replace", got {exist!r}')
    contents = open_corpus(source, None, timeout_s)
    manifest = contents.manifest
    with ExitStack() as resources:
        copy = place_of(target, timeout_s)
        place = copy.as_place("it has no room for the manifest of a copy")
        place.enter(resources)
        place.begin(replaces=exist == "replace")
        there = place.found
        folder, _, first = contents.paths[0].rpartition("/")
        # A link may lead to the folder; the URL of a folder leads to itself.
        is_here = os.path.realpath(folder) == os.path.realpath(place.folder)
        if is_here and first in there.file_names():
            raise ValueError(f"{target}: is the source of this copy; copy elsewhere")
        if exist == "error":
            _check_continues(there, manifest, place)
        pool = resources.enter_context(ThreadPoolExecutor(_THREADS, "roxxel-verify"))
        # A replacement ends by deleting every file of the old corpus, whatever another
        # copy does meanwhile. So all its own files have new names.
        is_new = exist == "replace"
        job = secrets.token_hex(6) if is_new else None
        known = Manifest() if is_new else there
        files = _Files(contents, manifest, known, place, pool, job)
        copied = files.manifest
        missing = files.missing({} if is_new else place.files.sizes())
        _add_missing(missing, contents, place, progress)
        is_same = pack_manifest(copied) == pack_manifest(there)
        if not is_same:
            place.check_present(files.sizes())
            if not place.commit(copied):
                raise FileExistsError(
                    f"{place.manifest}: another write was committed during this copy; "
                    "copy again"
                )
            place.discard(there.file_names() - copied.file_names())
    return place.summary(
        place.listed(copied),
        fingerprint=copied.fingerprint,
        kept=is_same and not missing,
    )


class _Files:
    """The files of a copy. A file that the target's manifest lists keeps its name.

    Other files get a name that begins with their digest. So a repeated copy finds the
    files that an interrupted copy has added. With a `job`, 12 hexadecimal digits, the
    names begin with the job instead.
    """

    def __init__(
        self,
        contents: Contents,
        manifest: Manifest,
        there: Manifest,
        place: Place,
        pool: ThreadPoolExecutor,
        job: str | None,
    ) -> None:
        shards, name = manifest.shards, place.name
        self._contents = contents
        self._there = _names_by_content(there)
        self._files: list[_File] = []
        names: list[str] = []
        new = [
            name.unit_shard(job or digest[:12], number, 0).name
            for number, digest in enumerate(shards.digests)
        ]
        taken = {*new}
        for number, digest in enumerate(shards.digests):
            # After a compaction there, an equal shard has the name of a later one.
            old = self._there.get(("", number, digest), new[number])
            names.append(new[number] if old in taken else old)
            check = partial(_check_shard, contents, number, pool)
            path, size = contents.paths[number], shards.num_bytes[number]
            self._files.append(_File(path, names[-1], size, check))
        self._shard_names = names
        self._place = place
        self._folder = contents.paths[0].removesuffix(shards.names[0])
        kept = {
            old: self._tokenizer(old, size)
            for old, size in manifest.tokenizer_files().items()
        }
        self.manifest = replace(
            manifest,
            versions=tuple(
                each
                if each.tokenizer_file is None
                else replace(each, tokenizer_file=kept[each.tokenizer_file[0]])
                for each in manifest.versions
            ),
            shards=replace(shards, names=names),
            columns={
                key: self._column(key, table) for key, table in manifest.columns.items()
            },
        )

    def missing(self, sizes: Mapping[str, int]) -> list[_File]:
        """Return the files that the target lacks, or has in another size."""
        files = {file.name: file for file in self._files}
        return [
            file for file in files.values() if sizes.get(file.name) != file.num_bytes
        ]

    def sizes(self) -> dict[str, int]:
        return {file.name: file.num_bytes for file in self._files}

    def _tokenizer(self, old: str, size: int) -> tuple[str, int]:
        """Return the name and size of a tokenizer's file in the copy."""
        kept = self._contents.kept
        is_open = kept is not None and kept[0].rpartition("/")[2] == old
        path = kept[0] if kept is not None and is_open else self._folder + old
        data = self._contents.files.open_listed(path, size).read(0, size)
        new = self._place.name.tokenizer(digest_of_tokenizer(data)).name
        self._files.append(_File(path, new, size, partial(_check_tokenizer, path)))
        return new, size

    def _column(self, key: str, table: ColumnTable) -> ColumnTable:
        names: list[str | None] = []
        for number, old in enumerate(table.names):
            if old is None:
                names.append(None)
                continue
            digest = table.digests[number]
            shard = self._shard_names[number]
            new = self._place.name.column(shard, key, digest[:8]).name
            known = self._there.get((key, number, digest), new)
            # Another shard there may have had the same values.
            is_own = known.startswith(f"{shard.removesuffix(SUFFIX)}.{key}.")
            names.append(known if is_own else new)
            path = self._folder + old
            check = partial(_check_column, path, digest)
            size = table.num_bytes[number]
            self._files.append(_File(path, str(names[-1]), size, check))
        return replace(table, names=names)


def _names_by_content(manifest: Manifest) -> dict[tuple[str, int, str], str]:
    """Return the files of a manifest by column, shard number and digest.

    For a shard itself, the column is "".
    """
    shards = manifest.shards
    names = {
        ("", number, digest): name
        for number, (digest, name) in enumerate(
            zip(shards.digests, shards.names, strict=True)
        )
    }
    for key, table in manifest.columns.items():
        for number, name in enumerate(table.names):
            if name is not None:
                names[key, number, table.digests[number]] = name
    return names


def _add_missing(
    missing: Sequence[_File],
    contents: Contents,
    place: Place,
    progress: Callable[[int, int], None] | None,
) -> None:
    done, total = 0, sum(file.num_bytes for file in missing)
    for file in missing:
        opened = contents.files.open_listed(file.path, file.num_bytes)
        source = Path(opened.path) if opened.is_mapped else None
        place.files.add(file.name, partial(copy_bytes, opened), file.check, source)
        done += file.num_bytes
        if progress is not None:
            progress(done, total)


def _check_continues(there: Manifest, source: Manifest, place: Place) -> None:
    """Check that a target is empty, or an earlier state of the source."""
    mine, theirs = source.fingerprints, there.fingerprints
    if theirs != mine[: len(theirs)]:
        raise FileExistsError(
            f"{place.manifest}: another corpus exists there, or the copy was changed; "
            'use exist="replace", or copy elsewhere'
        )
    for name in there.columns:
        if not _has_column(source, there, name):
            raise FileExistsError(
                f"{place.manifest}: its column {name!r} has other values than the "
                "source, or a gap before values in merged shards, which cannot be "
                'compared; use exist="replace" to copy those of the source, or copy '
                "elsewhere"
            )


def _has_column(source: Manifest, there: Manifest, name: str) -> bool:
    """Return whether a source has all values of a column of an earlier state."""
    mine, theirs = source.columns.get(name), there.columns[name]
    if mine is None:
        return False
    count = len(there.shards)
    if [*source.shards.digests[:count]] == [*there.shards.digests]:
        return mine.first(count).extends(theirs)
    # The shards of one of them were merged, so only the digests of versions tell, and
    # nothing about values after the last version that has all values.
    for version in reversed(there.versions):
        digest = there.column_digest(name, version)
        if digest:
            (num_shards,) = there.nums_shards([version])
            same = source.version(version.fingerprint) or Version()
            is_same = digest == source.column_digest(name, same)
            return is_same and not any(theirs.names[num_shards:])
    return False


def _check_shard(
    contents: Contents, number: int, pool: ThreadPoolExecutor, path: Path
) -> None:
    """Raise ShardError unless a file is an undamaged copy of a shard."""
    shard = ShardMap(LOCAL.open(str(path)))
    source = contents.paths[number]
    if shard.layout.row(contents.shards.names[number]) != contents.shards.row(number):
        raise ShardError(
            f"{source}: is not the shard that the corpus lists; open the corpus again"
        )
    for error in damage_of_shard(shard, pool.map):
        raise ShardError(f"{source}: is damaged and was not copied ({error})")


def _check_tokenizer(source: str, path: Path) -> None:
    _ = parse_tokenizer(path.read_bytes(), source)


def _check_column(source: str, expected: str, path: Path) -> None:
    """Raise ShardError unless a file is an undamaged copy of a column's file."""
    if digest_of(LOCAL.open(str(path))) != expected:
        raise ShardError(
            f"{source}: does not match its digest in the manifest and was not copied; "
            "restore the file, or write the column again"
        )
