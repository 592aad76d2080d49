"""One version of a corpus: its shards in order.

The record of a shard, its counts and digests, comes from the manifest. Without a
manifest, it comes from the foot of the shard, the last bytes of the file. The first use
of a shard opens the file and compares its foot with the record.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from roxxel_format._read.files import missing_file
from roxxel_format._read.shard import (
    FETCH_AGAIN,
    LOCAL,
    End,
    Opening,
    ShardMap,
    check_same_type,
)
from roxxel_format._spec import dtypes
from roxxel_format._spec.kept_tokenizer import MAX_SIZE, parse_tokenizer
from roxxel_format._spec.layout import shard_table
from roxxel_format._spec.manifest import (
    Manifest,
    bins_of,
    is_file_name,
    parse_manifest,
)
from roxxel_format._spec.tables import (
    BinTable,
    ColumnTable,
    ShardTable,
    as_table,
    unit_of,
)
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from roxxel_format._read.files import Files, OpenFile
    from roxxel_format._spec.tables import Earlier


@dataclass(frozen=True)
class Contents:
    """One version of a corpus: its shards in order.

    `manifest` is None for files without a manifest, and for a list of paths; the feet
    of the shards then replace it. `block_size` is the block size of the first shard.
    `fingerprint` covers the shards of this version.

    `kept` is the path and size of the file that keeps the tokenizer, if a manifest
    lists one.

    `earlier` is None unless the shards of this version were merged. Then it is the
    beginning of the corpus, and its last shard may hold more than belongs to it:
    `shards` describe the files, `bounds` and `first_own` the version.
    """

    filepath: str | tuple[str, ...]
    manifest: Manifest | None
    paths: tuple[str, ...]
    shards: ShardTable
    dtype_name: str
    block_size: int
    fingerprint: str
    files: Files = LOCAL
    earlier: Earlier | None = None
    kept: tuple[str, int] | None = None
    unlisted: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def bounds(self) -> tuple[int, ...]:
        """Index of the first token of each shard, then the number of tokens."""
        bounds = accumulate(self.shards.num_tokens, initial=0)
        if self.earlier is not None:
            return tuple(min(each, self.earlier.num_tokens) for each in bounds)
        return tuple(bounds)

    @cached_property
    def joined(self) -> tuple[bool, ...]:
        """For each shard, whether its first document began in an earlier shard."""
        return tuple(self.shards.joined())

    @cached_property
    def first_own(self) -> tuple[int, ...]:
        """Number of documents that begin before each shard; last, the total number."""
        counts = self.shards.own_documents(unit_of(self.bins))
        bounds = accumulate(counts, initial=0)
        if self.earlier is not None:
            return tuple(min(each, self.earlier.num_documents) for each in bounds)
        return tuple(bounds)

    @cached_property
    def bins(self) -> BinTable | None:
        """The bins of a packed corpus; the metadata has them without a manifest."""
        if self.manifest is None:
            numbers = range(len(self.paths))
            every = self.unlisted or (self.open_shard(x).metadata() for x in numbers)
            return bins_of(zip(self.paths, every, strict=True))
        bins = self.manifest.bins
        if bins is not None and self.earlier is not None:
            padding, cut = self.earlier.num_padding, self.earlier.num_cut
            return BinTable(bins.unit, [padding], [cut])
        return None if bins is None else bins.of(range(len(self.paths)))

    @cached_property
    def tokenizer_file(self) -> tuple[str, int] | None:
        """Path and size of the file that keeps the tokenizer, if there is one."""
        if self.manifest is not None or self.kept is not None:
            return self.kept
        first = self.unlisted[0] if self.unlisted else self.open_shard(0).metadata()
        recorded = as_table(first.get("tokenizer_file"))
        name, size = recorded.get("name"), recorded.get("bytes")
        if type(name) is not str or type(size) is not int or not is_file_name(name):
            return None
        path = self.paths[0]
        return path.removesuffix(_file_name(path)) + name, size

    def kept_tokenizer(self) -> dict[str, str]:
        """Return the files of the tokenizer that is kept, texts by name; else none.

        Raises:
            FileNotFoundError: The file is missing.
            ShardError: The file is damaged.
        """
        if self.tokenizer_file is None:
            return {}
        path, size = self.tokenizer_file
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
        if self.earlier is not None:
            return self.earlier.min_value, self.earlier.max_value
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
        return self.manifest.fingerprints

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """For each shard, the number of the write that added it, from 0."""
        versions = () if self.manifest is None else self.manifest.versions
        stops = [version.num_shards for version in versions]
        return tuple(bisect_right(stops, number) for number in range(len(self.paths)))

    def column_digest(self, name: str) -> str:
        """Return the digest of the values of a column that every shard has."""
        table = self.columns[name]
        known = self.earlier and self.earlier.columns.get(name)
        return known or table.value_digests([len(table)])[0]

    def document_ends(self, number: int) -> npt.NDArray[np.int64]:
        """Return the ends of the documents of a shard, and of the paddings.

        They count from the first token of the shard, and are those of this version.
        """
        ends = self.open_shard(number).document_ends
        if self.earlier is None or number + 1 < len(self.paths):
            return ends
        if self.bins is not None:  # No document is empty, but a padding may be.
            last = self.bounds[number + 1] - self.bounds[number]
            return ends[: ends.searchsorted(last, "right")]
        num_own = self.first_own[number + 1] - self.first_own[number]
        return ends[: num_own + self.joined[number]]

    def shard_of(self, token: int) -> int:
        """Return the shard that holds a token, `0 <= token < num_tokens`."""
        return bisect_right(self.bounds, token) - 1

    def open_shard(self, number: int) -> ShardMap:
        """Open a shard; raise ShardError if its file changed since this version."""
        path = self.paths[number]
        try:
            file = self.files.open(path, self.shards.num_bytes[number])
        except FileNotFoundError as error:
            raise missing_file(path) from error
        try:
            return self._checked_shard(number, file)
        except ShardError as error:
            if file.path == path:
                raise
            raise ShardError(
                f"{file.path}: this copy in the cache is damaged; delete it, and "
                f"{path} is fetched again"
            ) from error

    def _checked_shard(self, number: int, file: OpenFile) -> ShardMap:
        opening = None if file.is_mapped else self._opening(number)
        path = self.paths[number]
        remedy = FETCH_AGAIN
        if file.path != path:
            remedy = f"delete this copy in the cache, and {path} is fetched again"
        shard = ShardMap(file, opening, remedy)
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


def listed_contents(
    filepath: str,
    data: bytes,
    path: str,
    folder: str,
    version: str | None,
    files: Files = LOCAL,
) -> Contents:
    """Return the contents that a manifest lists; no shard is opened.

    `path` is the manifest's path, `data` its bytes. `folder` ends with a separator. If
    the manifest does not list `version`, the result is the current version.
    """
    manifest = parse_manifest(data, path)
    chosen, earlier = manifest.versions[-1], None
    if version is not None:
        found = manifest.version(version)
        earlier = manifest.earlier.find(version) if found is None else None
        chosen = found or chosen
    num_shards = chosen.num_shards
    if earlier is not None:
        counts = [earlier.num_tokens], [earlier.num_documents]
        (num_shards,) = nums_shards_of(*counts, manifest)
    shards = manifest.shards.first(num_shards)
    return Contents(
        filepath=filepath,
        manifest=manifest,
        paths=tuple(folder + name for name in shards.names),
        shards=shards,
        dtype_name=str(manifest.dtype_name),
        block_size=manifest.block_size,
        fingerprint=chosen.fingerprint if earlier is None else earlier.fingerprint,
        files=files,
        earlier=earlier,
        kept=_in_folder(folder, chosen.tokenizer_file),
    )


def _in_folder(folder: str, file: tuple[str, int] | None) -> tuple[str, int] | None:
    return None if file is None else (folder + file[0], file[1])


def nums_shards_of(
    num_tokens: Sequence[int], num_documents: Sequence[int], manifest: Manifest
) -> list[int]:
    """For each beginning of a corpus, return the number of shards that hold it.

    A beginning is so many tokens and documents, such as a version whose shards were
    merged.
    """
    shards = manifest.shards
    tokens = [*accumulate(shards.num_tokens)]
    documents = [*accumulate(shards.own_documents(unit_of(manifest.bins)))]
    pairs = zip(num_tokens, num_documents, strict=True)
    lasts = (max(bisect_left(tokens, t), bisect_left(documents, d)) for t, d in pairs)
    return [min(last + 1, len(shards)) for last in lasts]


def contents_of(
    filepath: str, paths: list[str], ends: list[End], files: Files = LOCAL
) -> Contents:
    """Return shards without a manifest as one corpus."""
    layouts = [layout for layout, _ in ends]
    head, shards = layouts[0].head, shard_table([*map(_file_name, paths)], layouts)
    contents = _without_manifest(
        filepath, paths, shards, head.dtype_name, head.block_size, files
    )
    return replace(contents, unlisted=tuple(metadata for _, metadata in ends))


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
    contents = _without_manifest(
        filepath, paths, shards, first.dtype_name, first.block_size, first.files
    )
    kept = (part.kept for part in parts)
    return replace(contents, kept=next(filter(None, kept), None))


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


def _file_name(path: str) -> str:
    # For 100 000 paths, pathlib takes 380 ms, and `os.path` 46 ms.
    return os.path.basename(path)  # noqa: PTH119
