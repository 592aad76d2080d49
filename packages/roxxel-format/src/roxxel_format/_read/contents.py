"""One version of a corpus: its shards in order.

A manifest lists the shards. The first use of a shard opens the file and compares its
foot, the last bytes, with the manifest. For shards that no manifest lists, and for a
list of corpora, a manifest is made in memory, so nothing below asks whether a corpus
has one.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from roxxel_format._read.shard import FETCH_AGAIN, LOCAL, ShardMap
from roxxel_format._spec.kept_tokenizer import MAX_SIZE, parse_tokenizer
from roxxel_format._spec.layout import (
    FOOT_SIZE,
    Head,
    documents_span,
    item_size,
    shard_table,
    stored_dtype,
    value_range,
)
from roxxel_format._spec.manifest import (
    MIN_UNIT,
    BinTable,
    ColumnTable,
    Manifest,
    ShardTable,
    Version,
    as_table,
    joined_arguments,
    joined_bins,
    tokenizer_identity,
    unit_of,
    unit_text,
)
from roxxel_format._spec.manifest_file import is_file_name, parse_manifest
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._read.files import Files, OpenFile
    from roxxel_format._spec.layout import Layout


@dataclass(frozen=True)
class Contents:
    """One version of a corpus: its shards in order.

    `manifest` is read, or made in memory for a file, and for a list of paths.
    `fingerprint` covers the shards of this version.

    If shards were merged, the last one may hold more than belongs to the version:
    `shards` describe the files, `bounds` and `first_documents` the version.
    """

    filepath: str | tuple[str, ...]
    manifest: Manifest
    version: Version
    paths: tuple[str, ...]
    files: Files = LOCAL

    @cached_property
    def shards(self) -> ShardTable:
        """The shards of this version."""
        return self.manifest.shards.first(len(self.paths))

    @property
    def folder(self) -> str:
        """What is before the name in the path of the first shard and its columns."""
        return self.paths[0].removesuffix(self.manifest.shards.names[0])

    @property
    def dtype_name(self) -> str:
        """Name of the item type."""
        return str(self.manifest.dtype_name)

    @property
    def block_size(self) -> int:
        """Bytes of a block of the first shard."""
        return self.manifest.block_size

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Index of the first token of each shard, then the number of tokens."""
        bounds = accumulate(self.shards.num_tokens, initial=0)
        return tuple(min(each, self.version.num_tokens) for each in bounds)

    @cached_property
    def first_documents(self) -> tuple[int, ...]:
        """Index of the first document of each shard, then the number of documents."""
        counts = self.shards.without_padding(unit_of(self.bins))
        bounds = accumulate(counts, initial=0)
        return tuple(min(each, self.version.num_documents) for each in bounds)

    @cached_property
    def bins(self) -> BinTable | None:
        """The bins of a packed corpus."""
        bins, version = self.manifest.bins, self.version
        if bins is None:
            return None
        return BinTable(bins.unit, [version.num_padding], [version.num_cut])

    @property
    def kept(self) -> tuple[str, int] | None:
        """Path and size of the file that keeps the tokenizer; None without one."""
        kept = self.version.tokenizer_file
        return None if kept is None else (self.folder + kept[0], kept[1])

    def kept_tokenizer(self) -> dict[str, str]:
        """Return the kept tokenizer's files, texts by name; empty if none is kept.

        Raises:
            FileNotFoundError: The file is missing.
            ShardError: The file is damaged.
        """
        if self.kept is None:
            return {}
        path, size = self.kept
        if not 0 < size <= MAX_SIZE:
            raise ShardError(
                f"{path}: has {size} bytes, but a kept tokenizer has at most {MAX_SIZE}"
                "; pass the tokenizer (--tokenizer)"
            )
        try:
            return parse_tokenizer(self.files.open(path, size).read(0, size), path)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{path}: the tokenizer of the corpus is missing; copy it beside the "
                "shards again (commands that show text also take --tokenizer)"
            ) from error

    @property
    def fingerprint(self) -> str:
        """Fingerprint of this version."""
        return self.version.fingerprint

    @property
    def ends_inside(self) -> bool:
        """Whether the last shard holds more than belongs to this version."""
        documents = self.shards.without_padding(unit_of(self.bins))
        there = sum(self.shards.num_tokens), sum(documents)
        return there != (self.version.num_tokens, self.version.num_documents)

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""
        return self.bounds[-1]

    @cached_property
    def num_documents(self) -> int:
        """Number of documents."""
        return self.first_documents[-1]

    @property
    def tokens_per_block(self) -> int:
        """Number of tokens in each block; the last block may have fewer."""
        return self.block_size // item_size(self.dtype_name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token, little-endian."""
        return stored_dtype(self.dtype_name)

    @cached_property
    def token_range(self) -> tuple[int, int] | None:
        """Least and greatest token of an integer type; None for other types."""
        if value_range(self.dtype_name) is None:
            return None
        return self.version.min_value, self.version.max_value

    @cached_property
    def columns(self) -> Mapping[str, ColumnTable]:
        """Columns of this version by name."""
        return self.manifest.columns_of(len(self.paths))

    @property
    def versions(self) -> list[str]:
        """Fingerprints of all versions, oldest first."""
        return self.manifest.fingerprints

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """The number of the write that added each shard, from 0."""
        stops = self.manifest.nums_shards(self.manifest.versions)
        return tuple(bisect_right(stops, number) for number in range(len(self.paths)))

    def column_digest(self, name: str) -> str:
        """Return the digest of the values of a column that every shard has."""
        return self.manifest.column_digest(name, self.version)

    def document_ends(self, number: int) -> npt.NDArray[np.int64]:
        """Return the ends of a shard's documents and of its paddings, in this version.

        They count from the first token of the shard.
        """
        ends = self.open_shard(number).document_ends
        if number + 1 < len(self.paths):
            return ends
        if self.bins is not None:  # No document is empty, but a padding may be.
            last = self.bounds[number + 1] - self.bounds[number]
            return ends[: ends.searchsorted(last, "right")]
        return ends[: self.first_documents[number + 1] - self.first_documents[number]]

    def shard_of(self, token: int) -> int:
        """Return the shard that holds a token, `0 <= token < num_tokens`."""
        return bisect_right(self.bounds, token) - 1

    def open_shard(self, number: int, *, checked: bool = False) -> ShardMap:
        """Open a shard; raise ShardError if its file changed since this version.

        If `checked`, every read of the shard verifies its blocks.
        """
        path = self.paths[number]
        file = self.files.open_listed(path, self.shards.num_bytes[number])
        try:
            return self._same_shard(number, file, checked=checked)
        except ShardError as error:
            if file.path == path:
                raise
            raise ShardError(
                f"{file.path}: this copy in the cache is damaged; delete it, and "
                f"{path} is fetched again"
            ) from error

    def _same_shard(self, number: int, file: OpenFile, *, checked: bool) -> ShardMap:
        if not file.is_mapped:
            self.will_open(number)
        head = None if file.is_mapped else self._head
        path = self.paths[number]
        remedy = FETCH_AGAIN
        if file.path != path:
            remedy = f"delete this copy in the cache, and {path} is fetched again"
        shard = ShardMap(file, head, remedy, checked=checked)
        layout = shard.layout
        is_same = layout.row(_file_name(path)) == self.shards.row(number)
        is_same = is_same and layout.head.dtype_name == self.dtype_name
        if number == 0:
            is_same = is_same and layout.head.block_size == self.block_size
        if not is_same:
            raise ShardError(
                f"{path}: the corpus was replaced: this file is not the one that this "
                "version lists; open the corpus again"
            )
        return shard

    def will_open(self, number: int) -> None:
        """Prefetch what `open_shard` reads; does nothing on a disk."""
        table = self.shards
        num_bytes, num_documents = table.num_bytes[number], table.num_documents[number]
        spans = [(num_bytes - FOOT_SIZE, num_bytes)]
        if num_documents:
            num_tokens = table.num_tokens[number]
            _, stop = documents_span(self._head, num_tokens, num_documents)
            spans.append((stop - 8, stop))
        self.files.will_open(self.paths[number], spans)

    @property
    def _head(self) -> Head:
        """The head of most shards, by the manifest."""
        return Head(self.dtype_name, self.block_size, len(self.manifest.appended))


def listed_contents(
    filepath: str,
    data: bytes,
    path: str,
    folder: str,
    version: str | None,
    files: Files = LOCAL,
) -> Contents:
    """Return the contents that a manifest lists; no shard is opened.

    `path` is the manifest's path, `data` its bytes. `folder` ends with a slash. If the
    manifest does not list `version`, the result is the current version.
    """
    manifest = parse_manifest(data, path)
    chosen = manifest.last
    if version is not None:
        chosen = manifest.version(version) or chosen
    (num_shards,) = manifest.nums_shards([chosen])
    paths = [folder + name for name in manifest.shards.names[:num_shards]]
    return Contents(filepath, manifest, chosen, tuple(paths), files)


def file_contents(
    path: str, files: Files = LOCAL, num_bytes: int | None = None
) -> Contents:
    """Return one shard as a corpus.

    Args:
        path: The file.
        files: Opens it.
        num_bytes: Its size, which must be known in a bucket.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: It is no shard, or damaged.
    """
    shard = ShardMap(files.open(path, num_bytes))
    manifest = _manifest_of(path, shard.layout, shard.metadata())
    return Contents(path, manifest, manifest.last, (path,), files)


def joined(filepath: str | tuple[str, ...], parts: Sequence[Contents]) -> Contents:
    """Join several corpora into one, without their columns and earlier versions.

    What a manifest records once comes from the first.

    Raises:
        FileNotFoundError: There are none.
        ShardError: They differ in item type, tokenizer or bins.
    """
    if not parts:
        raise FileNotFoundError("the list of shards is empty; pass at least one")
    _check_alike(parts)
    first = parts[0].manifest
    writes = [part.manifest.arguments for part in parts]
    arguments = writes[0]
    if len(writes) > 1 and any(writes):
        arguments = joined_arguments(writes)
    bins = joined_bins(
        [
            part.manifest.bins and part.manifest.bins.of(range(len(part.paths)))
            for part in parts
        ]
    )
    shards = ShardTable.chained(part.shards for part in parts)
    file = parts[0].version.tokenizer_file
    version = Version().followed_by(shards, bins, arguments, tokenizer_file=file)
    manifest = replace(
        first, kind=None, shards=shards, columns={}, versions=(version,), bins=bins
    )
    paths = tuple(path for part in parts for path in part.paths)
    return Contents(filepath, manifest, version, paths, parts[0].files)


def _manifest_of(path: str, layout: Layout, metadata: Mapping[str, Any]) -> Manifest:
    """Return a manifest of one version that lists one shard that no manifest lists.

    Args:
        path: Path or URL of the shard.
        layout: Its layout.
        metadata: Its metadata.

    Raises:
        ShardError: The metadata record impossible bins.
    """
    shards = shard_table([path.rpartition("/")[2]], [layout])
    bins = _bins_of(path, metadata)
    version = Version().followed_by(
        shards,
        bins,
        as_table(metadata.get("arguments")),
        tokenizer_file=_tokenizer_file_of(metadata),
    )
    return replace(
        Manifest.of_shard(metadata),
        dtype_name=layout.head.dtype_name,
        block_size=layout.head.block_size,
        shards=shards,
        versions=(version,),
        bins=bins,
    )


def _bins_of(path: str, metadata: Mapping[str, Any]) -> BinTable | None:
    """Return the bins that a shard's metadata record; None if it is not packed."""
    if "unit" not in metadata:
        return None
    counts = [metadata.get(name) for name in ("unit", "padding", "cut")]
    unit, padding, cut = (c if type(c) is int else -1 for c in counts)
    if unit < MIN_UNIT or padding < 0 or cut < 0:
        raise ShardError(
            f"{path}: records bins of {counts[0]!r:.50} tokens, padding "
            f"{counts[1]!r:.50} and cut documents {counts[2]!r:.50}; write this shard "
            "again"
        )
    return BinTable(unit, [padding], [cut])


def _tokenizer_file_of(metadata: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return name and size of the file beside a shard that keeps its tokenizer."""
    recorded = as_table(metadata.get("tokenizer_file"))
    name, size = recorded.get("name"), recorded.get("bytes")
    if type(name) is not str or type(size) is not int or not is_file_name(name):
        return None
    return name, size


def _check_alike(parts: Sequence[Contents]) -> None:
    """Raise ShardError if corpora differ in a fact of which one corpus has only one."""
    first = parts[0]
    for part in parts:
        for one, other in zip(_facts(first), _facts(part), strict=True):
            if one != other:
                raise ShardError(
                    f"{part.paths[0]}: {other}, but {first.paths[0]} {one}; open them "
                    "as two corpora"
                )


def _facts(part: Contents) -> tuple[str, str, str]:
    manifest = part.manifest
    return (
        f"holds {manifest.dtype_name}",
        f"holds {unit_text(manifest.bins)}",
        f"was written with tokenizer {tokenizer_identity(manifest.tokenizer)}",
    )


def _file_name(path: str) -> str:
    # For 100 000 paths, pathlib takes 380 ms, and `os.path` 46 ms.
    return os.path.basename(path)  # noqa: PTH119
