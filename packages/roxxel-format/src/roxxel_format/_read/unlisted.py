"""Shards that no manifest lists, as a corpus: its manifest is made from their feet.

One file is a corpus, and so is a list of files or of other corpora. The manifest is
made in memory, so nothing below asks whether a corpus has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_format._read.contents import Contents, contents_of
from roxxel_format._read.shard import LOCAL, ShardMap
from roxxel_format._spec.layout import shard_table
from roxxel_format._spec.manifest import Manifest, Version, joined_arguments
from roxxel_format._spec.manifest_file import is_file_name
from roxxel_format._spec.tables import (
    MIN_UNIT,
    BinTable,
    ShardTable,
    as_table,
    tokenizer_identity,
    unit_text,
)
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_format._read.files import Files


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
    metadata = shard.metadata()
    head = shard.layout.head
    name = path.rpartition("/")[2]
    shards = shard_table([name], [shard.layout])
    bins = _bins_of(path, metadata)
    kept = _recorded_file(metadata)
    arguments = as_table(metadata.get("arguments"))
    version = Version().followed_by(shards, bins, arguments, tokenizer_file=kept)
    manifest = Manifest(
        dtype_name=head.dtype_name,
        block_size=head.block_size,
        separator=tuple(metadata.get("separator") or ()),
        tokenizer=as_table(metadata.get("tokenizer")) or None,
        shards=shards,
        versions=(version,),
        bins=bins,
    )
    in_folder = kept and (path.removesuffix(name) + kept[0], kept[1])
    return contents_of(path, manifest, version, [path], files, in_folder)


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
    kept = next((part.kept for part in parts if part.kept is not None), None)
    writes = [part.manifest.arguments for part in parts]
    arguments = writes[0]
    if len(writes) > 1 and any(writes):
        arguments = joined_arguments(writes)
    found = [
        part.manifest.bins.of(range(len(part.paths)))
        for part in parts
        if part.manifest.bins is not None
    ]
    bins = sum(found[1:], found[0]) if found else None
    shards = ShardTable.chained(part.shards for part in parts)
    file = kept and (kept[0].rpartition("/")[2], kept[1])
    version = Version().followed_by(shards, bins, arguments, tokenizer_file=file)
    manifest = Manifest(
        dtype_name=first.dtype_name,
        block_size=first.block_size,
        separator=first.separator,
        tokenizer=first.tokenizer,
        shards=shards,
        versions=(version,),
        bins=bins,
    )
    paths = [path for part in parts for path in part.paths]
    return contents_of(filepath, manifest, version, paths, parts[0].files, kept)


def _check_alike(parts: Sequence[Contents]) -> None:
    """Raise ShardError if corpora differ in a fact of which one corpus has only one."""
    first = _facts(parts[0])
    for part in parts:
        for one, other in zip(first, _facts(part), strict=True):
            if one != other:
                raise ShardError(
                    f"{part.paths[0]}: {other}, but {parts[0].paths[0]} {one}; open "
                    "them as two corpora"
                )


def _facts(part: Contents) -> tuple[str, str, str]:
    manifest = part.manifest
    return (
        f"holds {manifest.dtype_name}",
        f"holds {unit_text(manifest.bins)}",
        f"was written with tokenizer {tokenizer_identity(manifest.tokenizer)}",
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


def _recorded_file(metadata: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return name and size of the file that keeps the tokenizer of a shard."""
    recorded = as_table(metadata.get("tokenizer_file"))
    name, size = recorded.get("name"), recorded.get("bytes")
    if type(name) is not str or type(size) is not int or not is_file_name(name):
        return None
    return name, size
