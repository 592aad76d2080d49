"""The gate: every check of a file's head and foot, before anything else is used.

Five numbers in the head and foot determine the layout. Every other field must equal the
value that follows from them. So no section can overlap another, or leave the file.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

from roxxel_format._spec import dtypes
from roxxel_format._spec.layout import (
    CRC,
    FIRST_IS_CONTINUED,
    FOOT,
    FOOT_CONTENT,
    FOOT_CRC,
    FOOT_DIGEST,
    FOOT_MAGIC,
    FOOT_SIZE,
    FOOT_ZEROS,
    FORMAT_VERSION,
    HEAD,
    HEAD_MAGIC,
    HEAD_SIZE,
    LAST_CONTINUES,
    MAX_BLOCK_SIZE,
    MAX_METADATA_SIZE,
    MAX_SEPARATOR_LENGTH,
    MIN_BLOCK_SIZE,
    Head,
    Layout,
    crc_of_head,
)
from roxxel_format.errors import ShardError

_HEAD_PADDING = bytes(HEAD_SIZE - HEAD.size - CRC.size)
_FOOT_PADDING = bytes(FOOT_CRC - FOOT_ZEROS)


def parse_layout(head: bytes, foot: bytes, file_size: int, path: str) -> Layout:
    """Return the layout of a file, after checking its head and foot against its size.

    Args:
        head: The first 4096 bytes of the file, or all of a smaller file.
        foot: The last 256 bytes of the file, or all of a smaller file.
        file_size: Bytes of the file.
        path: Names the file in errors.

    Raises:
        ShardError: The file is not a shard, is damaged, or of an unknown version.
    """
    if not HEAD_MAGIC.startswith(head[: len(HEAD_MAGIC)]) or not head:
        raise ShardError(
            f"{path}: not a Roxxel shard, it begins with {head[:8]!r}; "
            "check the path, or write the shard again"
        )
    if file_size < HEAD_SIZE + FOOT_SIZE:
        raise ShardError(
            f"{path}: file has {file_size} bytes, fewer than the smallest shard "
            f"({HEAD_SIZE + FOOT_SIZE}); it was cut short, so write this shard again"
        )
    try:
        parsed = _parse_head(head)
    except _BadHeadError as error:
        raise ShardError(f"{path}: {error}") from None
    return _parse_foot(parsed, head, foot, file_size, path)


class _BadHeadError(ValueError):
    """A head is wrong; the text says how, without the file's name."""


@lru_cache(maxsize=16)  # All shards of a corpus have the same head.
def _parse_head(head: bytes) -> Head:
    """Return the fields of a head, from its 4096 bytes.

    Raises:
        _BadHeadError: The head is damaged, or of an unknown version.
    """
    if zlib.crc32(head[: -CRC.size]) != crc_of_head(head):
        raise _BadHeadError(
            f"the head (bytes 0 to {HEAD_SIZE}) does not match its checksum; "
            "the file is damaged, so fetch or write this shard again"
        )
    _, version, size, raw_name, item_size, block_size, separator = HEAD.unpack_from(
        head
    )
    if version != FORMAT_VERSION:
        raise _BadHeadError(
            f"format version {version}, but this reader knows version "
            f"{FORMAT_VERSION}; install a newer roxxel-format"
        )
    name = raw_name.rstrip(b"\0").decode("ascii", "replace")
    if name not in dtypes.NAMES:
        raise _BadHeadError(
            f"unknown item type {name!r}; install a newer roxxel-format"
        )
    if (
        size != HEAD_SIZE
        or item_size != dtypes.item_size(name)
        or not MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
        or block_size & (block_size - 1)
        or separator > MAX_SEPARATOR_LENGTH
        or head[HEAD.size : -CRC.size] != _HEAD_PADDING
        or raw_name != name.encode("ascii").ljust(16, b"\0")
    ):
        raise _BadHeadError(
            f"the head contradicts itself (head size {size}, item size "
            f"{item_size} of {name}, block size {block_size}, separator length "
            f"{separator}); write this shard again"
        )
    return Head(name, block_size, separator)


def _parse_foot(
    head: Head, head_bytes: bytes, foot: bytes, file_size: int, path: str
) -> Layout:
    if foot[-len(FOOT_MAGIC) :] != FOOT_MAGIC:
        raise ShardError(
            f"{path}: the foot is missing from the end of the file ({file_size} "
            "bytes); it was cut short or overwritten, so write this shard again"
        )
    (crc,) = CRC.unpack_from(foot, FOOT_CRC)
    if zlib.crc32(foot[:FOOT_CRC]) != crc:
        raise ShardError(
            f"{path}: the foot (bytes {file_size - FOOT_SIZE} to {file_size}) does not "
            "match its checksum; the file is damaged, so fetch or write it again"
        )
    fields = FOOT.unpack_from(foot)
    _, _, num_tokens, num_documents, low, high, flags, _, *rest = fields
    *_, metadata_size, declared_size, checksums_crc, metadata_crc = rest
    if declared_size != file_size:
        raise ShardError(
            f"{path}: file has {file_size} bytes but its foot declares "
            f"{declared_size}; bytes were lost or added, so write this shard again"
        )
    signed = head.dtype_name.startswith("int")
    layout = Layout(
        head=head,
        num_tokens=num_tokens,
        num_documents=num_documents,
        min_value=_as_signed(low) if signed else low,
        max_value=_as_signed(high) if signed else high,
        flags=flags,
        metadata_size=metadata_size,
        checksums_crc=checksums_crc,
        metadata_crc=metadata_crc,
        content_digest=foot[FOOT_CONTENT:FOOT_DIGEST],
        digest=foot[FOOT_DIGEST:FOOT_ZEROS],
    )
    # Counts are checked first: packing the other fields overflows on absurd counts.
    if (
        num_tokens * head.item_size + num_documents * 8 + metadata_size > file_size
        or layout.fields(crc_of_head(head_bytes)) != foot[:FOOT_CONTENT]
        or layout.sections.stop != file_size
        or foot[FOOT_ZEROS:FOOT_CRC] != _FOOT_PADDING
        or metadata_size > MAX_METADATA_SIZE
        or not _is_consistent(layout)
    ):
        raise ShardError(
            f"{path}: the foot contradicts the head or the size of the file "
            f"({num_tokens} tokens, {num_documents} documents, {metadata_size} bytes "
            f"of metadata, {file_size} bytes); write this shard again"
        )
    return layout


def _is_consistent(layout: Layout) -> bool:
    limits = dtypes.value_range(layout.head.dtype_name)
    low, high = layout.min_value, layout.max_value
    if limits is None or not layout.num_tokens:
        in_range = low == high == 0
    else:
        in_range = limits[0] <= low <= high <= limits[1]
    known_flags = not layout.flags & ~(FIRST_IS_CONTINUED | LAST_CONTINUES)
    no_documents = layout.num_documents == 0
    return (
        in_range
        and known_flags
        and not (no_documents and (layout.num_tokens or layout.flags))
    )


def _as_signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
