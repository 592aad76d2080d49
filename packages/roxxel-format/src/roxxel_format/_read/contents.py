"""The contents of a corpus: its shards, as its manifest or their feet describe them.

A corpus with a manifest is opened by reading that one file. Each shard is opened when
it is first needed, and compared with its row in the manifest or in the feet.
"""

from __future__ import annotations

import glob
import os
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roxxel_format._read.discovery import (
    check_only_corpus,
    check_writes,
    find_shards,
)
from roxxel_format._read.opening import open_file, read_layout, read_metadata
from roxxel_format._read.shard_map import ShardMap
from roxxel_format._spec import dtypes
from roxxel_format._spec.manifest import (
    ColumnTable,
    Manifest,
    ShardTable,
    row_of,
)
from roxxel_format._spec.manifest_gate import parse_manifest
from roxxel_format._spec.metadata import as_table
from roxxel_format._store.corpus_name import corpus_name
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from roxxel_format._spec.layout import Layout


@dataclass(frozen=True)
class Contents:
    """One version of a corpus.

    Attributes:
        filepath: The path or paths that name the corpus.
        manifest: The manifest; None for files without one, and for a list of paths.
        paths: The shards of this version, in order.
        shards: One row for each shard, from the manifest or else from its foot.
        dtype_name: Stored name of the item type of all shards.
        block_size: Bytes of a checksum block of the first shard.
        fingerprint: Fingerprint of these shards, 32 hexadecimal digits.
    """

    filepath: str | tuple[str, ...]
    manifest: Manifest | None
    paths: tuple[str, ...]
    shards: ShardTable
    dtype_name: str
    block_size: int
    fingerprint: str

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """First token of each shard, then the number of tokens."""
        return tuple(accumulate(self.shards.num_tokens, initial=0))

    @cached_property
    def joined(self) -> tuple[bool, ...]:
        """For each shard, whether its first document began in the shard before."""
        return tuple(self.shards.joined())

    @cached_property
    def first_own(self) -> tuple[int, ...]:
        """Documents that begin before each shard, then the number of documents."""
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
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token, little-endian."""
        return dtypes.stored_dtype(self.dtype_name)

    @cached_property
    def token_range(self) -> tuple[int, int] | None:
        """Least and greatest token of an integer type, None for other types."""
        if dtypes.value_range(self.dtype_name) is None:
            return None
        table = self.shards
        low = [v for v, n in zip(table.min_values, table.num_tokens, strict=True) if n]
        high = [v for v, n in zip(table.max_values, table.num_tokens, strict=True) if n]
        return min(low, default=0), max(high, default=0)

    @property
    def columns(self) -> Mapping[str, ColumnTable]:
        """Columns by name; none without a manifest."""
        return self.manifest.columns if self.manifest else {}

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
        """Open and map a shard.

        Raises:
            ShardError: The corpus was replaced: the file is gone, or is not the shard
                that it was when the corpus was opened. Or the file is damaged.
            OSError: The file cannot be read or mapped.
        """
        path = self.paths[number]
        try:
            fd = open_file(path)
        except FileNotFoundError as error:
            raise ShardError(
                f"{path}: the file is gone, so the corpus was replaced or the file was "
                "removed; open the corpus again, or restore the file"
            ) from error
        try:
            layout = read_layout(fd, path)
            self._check_shard(number, layout)
        except BaseException:
            os.close(fd)
            raise
        return ShardMap(path, layout, fd)

    def check_empty_shards(self) -> None:
        """Check the shards without tokens, which no later read would open.

        Raises:
            ShardError: The corpus was replaced, or its manifest is wrong.
        """
        for number, num_tokens in enumerate(self.shards.num_tokens):
            if not num_tokens:
                self.open_shard(number)

    def _check_shard(self, number: int, layout: Layout) -> None:
        """Check that an opened file is the shard that the opening described.

        Raises:
            ShardError: The corpus was replaced, or its manifest is wrong.
        """
        path, head = self.paths[number], layout.head
        is_same = row_of(_file_name(path), layout) == self.shards.row(number)
        is_same = is_same and head.dtype_name == self.dtype_name
        if number == 0:
            is_same = is_same and head.block_size == self.block_size
        if not is_same:
            known = "was opened" if self.manifest is None else "its manifest lists"
            raise ShardError(
                f"{path}: the corpus was replaced: this file is not the one that "
                f"{known}; open the corpus again"
            )


def open_contents(
    filepath: str | tuple[str, ...], version: str | None = None
) -> Contents:
    """Open a corpus.

    Args:
        filepath: A file, a folder, a pattern, or several of these; absolute.
        version: Fingerprint of the version to open. Default: the current one.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: The corpus has no such version; or its files are not a corpus.
    """
    if isinstance(filepath, str):
        contents = _open_one(filepath, version)
    else:
        contents = _joined(filepath, [_open_one(path, None) for path in filepath])
    if version is not None and contents.fingerprint != version:
        raise _no_version(contents, version)
    return contents


def tokenizer_identity(recorded: object) -> str | None:
    """Return name and hash of a tokenizer as metadata or a manifest records it."""
    table = as_table(recorded)
    name, digest = table.get("name"), table.get("hash")
    if not isinstance(name, str):
        return None
    return name if digest is None else f"{name}@{digest}"


def layouts_of(paths: Sequence[str]) -> list[Layout]:
    """Return the layouts of shards, which have one item type.

    Raises:
        ShardError: A file is not a shard, or their item types differ.
    """
    layouts = [_layout_of(path) for path in paths]
    first = layouts[0].head.dtype_name
    for path, layout in zip(paths, layouts, strict=True):
        if layout.head.dtype_name != first:
            raise ShardError(
                f"{path}: holds {layout.head.dtype_name}, but {paths[0]} holds "
                f"{first}; open them as two corpora"
            )
    return layouts


def _open_one(filepath: str, version: str | None) -> Contents:
    found = _read_manifest(filepath)
    if found is None:
        contents = _open_files(filepath)
        # A first write commits its manifest before its first shard. So if there is a
        # manifest now, the files may be a part of a corpus.
        is_settled = _read_manifest(filepath) is None
        return contents if is_settled else _open_one(filepath, version)
    path, data = found
    if Path(filepath).is_dir():
        check_only_corpus(Path(filepath), corpus_name(filepath))
    manifest = parse_manifest(data, str(path))
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
    # For 100 000 names `os.path.join` takes 60 ms, and this 13 ms.
    folder = str(path.with_name("_"))[:-1]
    contents = Contents(
        filepath=filepath,
        manifest=manifest,
        paths=tuple(folder + name for name in shards.names),
        shards=shards,
        dtype_name=name,
        block_size=manifest.block_size,
        fingerprint=chosen.fingerprint,
    )
    contents.check_empty_shards()
    return contents


def _read_manifest(filepath: str) -> tuple[Path, bytes] | None:
    """Return the manifest of a corpus and its bytes, None if it has none."""
    path = _manifest_path(filepath)
    if path is None:
        return None
    try:
        return path, path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _open_files(filepath: str) -> Contents:
    paths = find_shards(filepath)
    layouts = layouts_of(paths)
    first = layouts[0]
    shards = ShardTable.of([*map(_file_name, paths)], layouts)
    check_writes(filepath, paths, _write_of)
    return Contents(
        filepath=filepath,
        manifest=None,
        paths=tuple(paths),
        shards=shards,
        dtype_name=first.head.dtype_name,
        block_size=first.head.block_size,
        fingerprint=shards.fingerprints([len(shards)])[0],
    )


def _joined(filepath: tuple[str, ...], parts: list[Contents]) -> Contents:
    """Return several corpora as one."""
    if not parts:
        raise FileNotFoundError("the list of shards is empty; name at least one")
    first = parts[0]
    shards = ShardTable()
    for part in parts:
        if part.dtype_name != first.dtype_name:
            raise ShardError(
                f"{part.paths[0]}: holds {part.dtype_name}, but {first.paths[0]} holds "
                f"{first.dtype_name}; open them as two corpora"
            )
    for part in parts:
        shards += part.shards
    return Contents(
        filepath=filepath,
        manifest=None,
        paths=tuple(path for part in parts for path in part.paths),
        shards=shards,
        dtype_name=first.dtype_name,
        block_size=first.block_size,
        fingerprint=shards.fingerprints([len(shards)])[0],
    )


def _manifest_path(filepath: str) -> Path | None:
    """Return where the manifest of a corpus would be, None if it can have none.

    Raises:
        ShardError: A folder holds several manifests.
    """
    is_pattern = glob.has_magic(filepath) and not Path(filepath).exists()
    try:
        return corpus_name(filepath).manifest
    except ValueError as error:
        if is_pattern:
            return None
        raise ShardError(str(error)) from error


def _no_version(contents: Contents, version: str) -> ShardError:
    if not isinstance(contents.filepath, str):
        names = ", ".join(contents.filepath)
        return ShardError(
            f"{names}: one of these was appended to or replaced; together they have "
            f"no version {version}, and are {contents.fingerprint} now. Open them "
            "again to read that; open corpora that grow one by one, because a list "
            "has no versions"
        )
    return ShardError(
        f"{contents.filepath}: has no version {version}: the corpus was replaced, or "
        "the fingerprint is not one of its versions; open the corpus again to read its "
        f"current version {contents.fingerprint}"
    )


def _file_name(path: str) -> str:
    # For 100 000 paths pathlib takes 380 ms, and this 46 ms.
    return os.path.basename(path)  # noqa: PTH119


def _layout_of(path: str) -> Layout:
    fd = open_file(path)
    try:
        return read_layout(fd, path)
    finally:
        os.close(fd)


def _write_of(path: str) -> dict[str, Any]:
    """Return the `write` field of a shard's metadata, {} if it has none."""
    fd = open_file(path)
    try:
        metadata = read_metadata(fd, read_layout(fd, path), path)
    except ShardError:
        return {}  # `verify` reports damaged metadata.
    finally:
        os.close(fd)
    return as_table(metadata.get("write"))
