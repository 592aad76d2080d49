"""Shards that no manifest lists, as a corpus: one file, or a list of files or corpora.

Their manifest is made in memory, so nothing below asks whether a corpus has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from roxxel_format._read.contents import Contents
from roxxel_format._read.shard import LOCAL, ShardMap
from roxxel_format._spec.in_memory import manifest_of
from roxxel_format._spec.manifest import (
    Manifest,
    ShardTable,
    Version,
    joined_arguments,
    joined_bins,
    tokenizer_identity,
    unit_text,
)
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    manifest = manifest_of(path, shard.layout, shard.metadata())
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
    manifest = Manifest(
        dtype_name=first.dtype_name,
        block_size=first.block_size,
        separator=first.separator,
        tokenizer=first.tokenizer,
        shards=shards,
        versions=(version,),
        bins=bins,
    )
    paths = tuple(path for part in parts for path in part.paths)
    return Contents(filepath, manifest, version, paths, parts[0].files)


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
