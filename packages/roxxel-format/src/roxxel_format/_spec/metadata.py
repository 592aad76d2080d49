"""The metadata of a shard: a JSON object with a checksum."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, cast

from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    from roxxel_format._spec.layout import Layout


def parse_metadata(data: bytes, layout: Layout, path: str) -> dict[str, Any]:
    """Return the metadata of a shard.

    Args:
        data: The bytes of the metadata section.
        layout: The shard's layout.
        path: Names the file in errors.

    Raises:
        ChecksumError: The bytes do not match their checksum.
        ShardError: The metadata is not a JSON object.
    """
    offset = layout.sections.metadata
    if zlib.crc32(data) != layout.metadata_crc:
        raise ChecksumError(
            f"{path}: the metadata (byte {offset} on) does not match its checksum; "
            "fetch or write this shard again",
            path=path,
            section="metadata",
            block=None,
            byte_offset=offset,
        )
    try:
        metadata = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"{path}: the metadata is not JSON ({error}); write this shard again"
        ) from error
    if not isinstance(metadata, dict):
        raise ShardError(
            f"{path}: the metadata is not a JSON object; write this shard again"
        )
    return cast("dict[str, Any]", metadata)


def as_table(value: object) -> dict[str, Any]:
    """Return a JSON object unchanged, and an empty one for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
