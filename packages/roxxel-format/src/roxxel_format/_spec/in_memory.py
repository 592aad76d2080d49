"""The manifest of one shard that no manifest lists, made from its foot and metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_format._spec.layout import shard_table
from roxxel_format._spec.manifest import MIN_UNIT, BinTable, Manifest, Version, as_table
from roxxel_format._spec.manifest_file import is_file_name
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel_format._spec.layout import Layout


def manifest_of(path: str, layout: Layout, metadata: Mapping[str, Any]) -> Manifest:
    """Return a manifest of one version that lists one shard.

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
    return Manifest(
        dtype_name=layout.head.dtype_name,
        block_size=layout.head.block_size,
        separator=tuple(metadata.get("separator") or ()),
        tokenizer=as_table(metadata.get("tokenizer")) or None,
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
