"""Find the shards of a corpus, and open one version of the corpus.

Opening a corpus reads its manifest; without a manifest, it reads the feet of all
shards. The first use of a shard opens the file and compares its foot with this record.

Earlier writers of numbered shards made no manifest. They recorded the write in the
metadata (`write`), left a lock file if several writers could append, and kept a marker
file during a replacement.
"""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import (
    LOCAL,
    Opening,
    ShardMap,
    check_same_type,
    layouts_of,
)
from roxxel_format._read.shard import open_shard as open_local_shard
from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import shard_table
from roxxel_format._spec.manifest import MAX_MANIFEST_SIZE, Manifest, parse_manifest
from roxxel_format._spec.tables import (
    ColumnTable,
    ShardTable,
    are_complete,
    as_table,
    is_of_one_file,
)
from roxxel_format._store.corpus_name import (
    SUFFIX,
    CorpusName,
    corpora_in,
    corpus_name,
    matching_files,
    spellings,
    visible,
)
from roxxel_format._store.plain_name import resolved
from roxxel_format._store.reading import read_file
from roxxel_format.errors import OldShardError, ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from roxxel_format._read.files import Files, OpenFile
    from roxxel_format._spec.layout import Layout

_NUMBERED = re.compile(r"(.*?)([0-9]{5,})([^0-9]*)")


@dataclass(frozen=True)
class Contents:
    """One version of a corpus: its shards in order, from the manifest or the feet.

    `manifest` is None for files without a manifest, and for a list of paths.
    `block_size` is the block size of the first shard. `fingerprint` covers the shards
    of this version.
    """

    filepath: str | tuple[str, ...]
    manifest: Manifest | None
    paths: tuple[str, ...]
    shards: ShardTable
    dtype_name: str
    block_size: int
    fingerprint: str
    files: Files = LOCAL

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Index of the first token of each shard, then the number of tokens."""
        return tuple(accumulate(self.shards.num_tokens, initial=0))

    @cached_property
    def joined(self) -> tuple[bool, ...]:
        """For each shard, whether its first document began in an earlier shard."""
        return tuple(self.shards.joined())

    @cached_property
    def first_own(self) -> tuple[int, ...]:
        """Number of documents that begin before each shard, then of all documents."""
        return tuple(accumulate(self.shards.own_documents(), initial=0))

    @property
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""
        return self.bounds[-1]

    @property
    def num_documents(self) -> int:
        """Number of documents; a document that was split over shards counts once."""
        return self.first_own[-1]

    @property
    def tokens_per_block(self) -> int:
        """Number of tokens in each block; the last block may have fewer."""
        return self.block_size // dtypes.item_size(self.dtype_name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token, little-endian."""
        return dtypes.stored_dtype(self.dtype_name)

    @cached_property
    def token_range(self) -> tuple[int, int] | None:
        """Least and greatest token of an integer type; None for other types."""
        if dtypes.value_range(self.dtype_name) is None:
            return None
        table = self.shards
        low = [v for v, n in zip(table.min_values, table.num_tokens, strict=True) if n]
        high = [v for v, n in zip(table.max_values, table.num_tokens, strict=True) if n]
        return min(low, default=0), max(high, default=0)

    @cached_property
    def columns(self) -> Mapping[str, ColumnTable]:
        """Columns of this version by name; empty without a manifest."""
        if self.manifest is None:
            return {}
        return self.manifest.columns_of(len(self.paths))

    @property
    def versions(self) -> list[str]:
        """Fingerprints of all versions, oldest first."""
        if self.manifest is None:
            return [self.fingerprint]
        return [version.fingerprint for version in self.manifest.versions]

    def shard_of(self, token: int) -> int:
        """Return the shard that holds a token, `0 <= token < num_tokens`."""
        return bisect_right(self.bounds, token) - 1

    def open_shard(self, number: int) -> ShardMap:
        """Open a shard; raise ShardError if its file changed since this version."""
        path = self.paths[number]
        try:
            while True:
                file = self.files.open(path, self.shards.num_bytes[number])
                try:
                    return self._checked_shard(number, file)
                except ShardError:
                    if not self.files.discard(file.path):
                        raise
        except FileNotFoundError as error:
            raise ShardError(
                f"{path}: the file is missing, because the corpus was replaced or the "
                "file was removed; open the corpus again, or restore the file"
            ) from error

    def _checked_shard(self, number: int, file: OpenFile) -> ShardMap:
        opening = None if file.is_mapped else self._opening(number)
        path, shard = self.paths[number], ShardMap(file, opening)
        layout = shard.layout
        is_same = layout.row(_file_name(path)) == self.shards.row(number)
        is_same = is_same and layout.head.dtype_name == self.dtype_name
        if number == 0:
            is_same = is_same and layout.head.block_size == self.block_size
        if not is_same:
            known = "was opened" if self.manifest is None else "its manifest lists"
            raise ShardError(
                f"{path}: the corpus was replaced: this file is not the one that "
                f"{known}; open the corpus again"
            )
        return shard

    def will_open(self, number: int) -> None:
        """Prefetch what `open_shard` reads; does nothing on a disk."""
        spans = self._opening(number).spans(self.shards.num_bytes[number])
        self.files.will_open(self.paths[number], spans)

    def _opening(self, number: int) -> Opening:
        table = self.shards
        return Opening.of(
            table.num_bytes[number],
            table.num_tokens[number],
            table.num_documents[number],
            self.block_size,
            self.dtype_name,
        )


def open_contents(
    filepath: str | tuple[str, ...], version: str | None = None
) -> Contents:
    """Open `version` of a corpus on a disk, or its current version.

    Paths are absolute.
    """
    if isinstance(filepath, str):
        return checked_version(_open_one(filepath, version), version)
    contents = joined(filepath, [_open_one(path, None) for path in filepath])
    return checked_version(contents, version)


def checked_version(contents: Contents, version: str | None) -> Contents:
    """Return the contents; raise ShardError unless they are the wanted version."""
    if version is not None and contents.fingerprint != version:
        raise _no_version(contents, version)
    return contents


def resolved_to_read(filepath: str) -> str:
    """Return the path or pattern that a reader of `filepath` opens.

    Raises:
        ShardError: A plain name may mean a file or numbered shards.
    """
    return resolved(filepath, _may_be_shard)


def _may_be_shard(path: Path, several: CorpusName) -> bool:
    """Return whether a file may be a numbered shard; a damaged one may be."""
    number = several.number(path.name)
    try:
        metadata = open_local_shard(str(path)).metadata()
    except OldShardError:
        return True
    except (OSError, ShardError):
        return number is not None
    return number is not None and not is_of_one_file(metadata, number)


def _open_one(filepath: str, version: str | None) -> Contents:
    filepath = resolved_to_read(filepath)
    found = _read_manifest(filepath)
    if found is None:
        contents = _open_files(filepath)
        # A first write commits its manifest before its first shard. So if a manifest
        # exists now, the files may be part of a new corpus.
        is_settled = _read_manifest(filepath) is None
        return contents if is_settled else _open_one(filepath, version)
    path, data = found
    # For 100 000 names, `os.path.join` takes 60 ms, and adding strings 13 ms.
    folder = str(path.with_name("_"))[:-1]
    contents = listed_contents(filepath, data, str(path), folder, version)
    if Path(filepath).is_dir() and contents.manifest is not None:
        _check_only_corpus(corpus_name(filepath), contents.manifest.shards.names)
    for number, num_tokens in enumerate(contents.shards.num_tokens):
        if not num_tokens:  # No read opens a shard without tokens, so check it now.
            contents.open_shard(number)
    return contents


def listed_contents(
    filepath: str,
    data: bytes,
    path: str,
    folder: str,
    version: str | None,
    files: Files = LOCAL,
) -> Contents:
    """Return the contents that a manifest lists; no shard is opened.

    `path` is the manifest's path, `data` its bytes. `folder` ends with a separator.
    If the manifest has no such version, the result is the current one.
    """
    manifest = parse_manifest(data, path)
    name = manifest.dtype_name
    if name is None or not manifest.versions:
        raise ShardError(
            f"{path}: no version is committed; the first write is still in progress or "
            "was interrupted, so wait for it, or write the corpus again"
        )
    chosen = manifest.versions[-1]
    if version is not None:
        chosen = manifest.version(version) or chosen
    shards = manifest.shards.first(chosen.num_shards)
    return Contents(
        filepath=filepath,
        manifest=manifest,
        paths=tuple(folder + name for name in shards.names),
        shards=shards,
        dtype_name=name,
        block_size=manifest.block_size,
        fingerprint=chosen.fingerprint,
        files=files,
    )


def _read_manifest(filepath: str) -> tuple[Path, bytes] | None:
    """Return path and bytes of a corpus's manifest; None without a manifest."""
    is_pattern = glob.has_magic(filepath) and not Path(filepath).exists()
    try:
        path = corpus_name(filepath).manifest
    except ValueError as error:
        if is_pattern:
            return None
        raise ShardError(str(error)) from error
    if path is None:
        return None
    try:
        return path, read_file(path, MAX_MANIFEST_SIZE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _open_files(filepath: str) -> Contents:
    paths = _find_shards(filepath)
    layouts = layouts_of(paths)
    _check_writes(filepath, paths)
    return contents_of(filepath, paths, layouts)


def contents_of(
    filepath: str, paths: list[str], layouts: list[Layout], files: Files = LOCAL
) -> Contents:
    """Return shards without a manifest as one corpus."""
    head, shards = layouts[0].head, shard_table([*map(_file_name, paths)], layouts)
    return _without_manifest(
        filepath, paths, shards, head.dtype_name, head.block_size, files
    )


def joined(filepath: tuple[str, ...], parts: list[Contents]) -> Contents:
    """Join several corpora into one corpus without a manifest."""
    if not parts:
        raise FileNotFoundError("the list of shards is empty; pass at least one")
    check_same_type([(part.paths[0], part.dtype_name) for part in parts])
    paths = [path for part in parts for path in part.paths]
    shards = ShardTable()
    for part in parts:
        shards += part.shards
    first = parts[0]
    return _without_manifest(
        filepath, paths, shards, first.dtype_name, first.block_size, first.files
    )


def _without_manifest(
    filepath: str | tuple[str, ...],
    paths: list[str],
    shards: ShardTable,
    dtype_name: str,
    block_size: int,
    files: Files,
) -> Contents:
    (fingerprint,) = shards.fingerprints([len(shards)])
    return Contents(
        filepath, None, tuple(paths), shards, dtype_name, block_size, fingerprint, files
    )


def _no_version(contents: Contents, version: str) -> ShardError:
    if not isinstance(contents.filepath, str):
        names = ", ".join(contents.filepath)
        return ShardError(
            f"{names}: one of these was appended to or replaced, so the list has no "
            f"version {version}; open the list again to read its current version "
            f"{contents.fingerprint}, or open growing corpora one by one"
        )
    return ShardError(
        f"{contents.filepath}: has no version {version}: the corpus was replaced, or "
        "the fingerprint is not one of its versions; open the corpus again to read its "
        f"current version {contents.fingerprint}"
    )


def _find_shards(filepath: str) -> list[str]:
    """Return the shards of a file, folder or pattern, in natural order."""
    found = matching_files(filepath)
    if found == [filepath]:
        return found
    _check_one_corpus(filepath, found)
    _check_manifests(filepath, found)
    return found


def _check_only_corpus(name: CorpusName, listed: Sequence[str]) -> None:
    """Check that every shard in the folder belongs to the corpus `name`."""
    found = visible(name.folder.glob("*" + SUFFIX))
    own = spellings(name, listed)
    others = [
        path for path in found if not any(each.is_own(Path(path).name) for each in own)
    ]
    if others:
        raise ShardError(
            f"{name.folder}: holds {Path(others[0]).name} and {len(others) - 1} more "
            f'shards that do not belong to "{Path(name.pattern).name}", the corpus of '
            "its manifest; open each corpus by its pattern, or keep each in a folder "
            "of its own"
        )


def _check_writes(filepath: str, paths: Sequence[str]) -> None:
    """Check that no write of these shards, which have no manifest, was interrupted."""
    named = _numbered_name(filepath)
    if paths[0] == filepath or named is None:
        return
    # The path of a folder names all corpora in the folder.
    prefix = "" if str(named.folder) == filepath else named.prefix
    corpora: dict[CorpusName, list[str]] = {}
    for path in paths:
        name = _name_of(path)
        if name is not None and name.prefix.startswith(prefix):
            corpora.setdefault(name, []).append(path)
    for name, group in corpora.items():
        marker = name.replacement_marker
        if marker.exists():
            raise ShardError(
                f"{name.pattern}: a replacement of this corpus is in progress or was "
                "interrupted, so its shards belong to two corpora; wait for it, or "
                "write the corpus again"
            )
        # If a lock file exists, several writers may have appended at once and left
        # gaps, so check every shard. Otherwise check the last shard.
        if marker.with_suffix(".lock").exists():
            is_complete = are_complete([w for w in map(_write_of, group) if w])
        else:
            is_complete = _write_of(group[-1]).get("last") is not False
        if not is_complete:
            raise ShardError(
                f"{name.pattern}: a write of its {len(group)} shards was interrupted "
                "or is still in progress; write the corpus again, or pass a list of "
                "the shards to read them anyway"
            )


def _check_one_corpus(filepath: str, found: Sequence[str]) -> None:
    """Check that a path matches shards of only one corpus.

    For example, `wiki_*.rox` also matches `wiki_en_00000.rox`.
    """
    named = _numbered_name(filepath)
    if named is None:
        return
    names = [Path(path).name for path in found]
    ours = [name for name in names if named.number(name) is not None]
    others = [name for name in names if named.number(name) is None]
    if ours and others and "[0-9]*" not in filepath:
        raise ShardError(
            f"{filepath}: matches {len(ours)} shards of this corpus (such as "
            f"{ours[0]}) and {len(others)} other shards (such as {others[0]}); "
            f'pass "{named.prefix}[0-9]*{named.suffix}" for only this corpus, or a '
            "list of patterns for both, or keep each corpus in its own folder"
        )


def _check_manifests(filepath: str, found: Sequence[str]) -> None:
    """Check that the shards are of one corpus, and that its manifest lists them."""
    corpora = {folder: corpora_in(folder) for folder in {Path(p).parent for p in found}}
    owners: dict[CorpusName | None, list[str]] = {}
    for path in map(Path, found):
        owner = next((c for c in corpora[path.parent] if c.is_own(path.name)), None)
        owners.setdefault(owner, []).append(path.name)
    manifests = {name: each for name, each in owners.items() if name is not None}
    if len(owners) > 1 and manifests:
        known = ", ".join(sorted(name.pattern for name in manifests))
        raise ShardError(
            f"{filepath}: matches shards of several corpora ({known}); open each "
            "corpus by its own pattern, or pass a list of patterns"
        )
    named = _numbered_name(filepath)
    for name, shards in manifests.items():
        path = name.manifest
        if path is None or name == named:  # Just committed: `_open_one` opens again.
            continue
        listed = parse_manifest(
            read_file(path, MAX_MANIFEST_SIZE), str(path)
        ).shards.names
        unlisted = sorted(set(shards).difference(listed))
        if unlisted:
            raise ShardError(
                f"{filepath}: matches {unlisted[0]}, which {path.name} does not list: "
                "its write was interrupted, is in progress, or was replaced; open the "
                f'corpus by its pattern, "{Path(name.pattern).name}"'
            )


def _numbered_name(filepath: str) -> CorpusName | None:
    """Return the corpus of numbered shards that a path names, or None."""
    try:
        name = corpus_name(filepath)
    except ValueError:
        return None
    return None if name.manifest is None else name


def _name_of(path: str) -> CorpusName | None:
    """Return the corpus that a numbered shard belongs to, or None."""
    folder, file_name = os.path.split(path)
    match = _NUMBERED.fullmatch(file_name)
    if match is None:
        return None
    name = CorpusName(Path(folder), match[1], match[3], Path(folder))
    return None if name.number(file_name) is None else name


def _file_name(path: str) -> str:
    # For 100 000 paths, pathlib takes 380 ms, and `os.path` 46 ms.
    return os.path.basename(path)  # noqa: PTH119


def _write_of(path: str) -> dict[str, Any]:
    """Return the `write` field of a shard's metadata, or {}."""
    try:
        metadata = open_local_shard(path).metadata()
    except ShardError:
        return {}  # `verify` reports damaged metadata.
    return as_table(metadata.get("write"))
