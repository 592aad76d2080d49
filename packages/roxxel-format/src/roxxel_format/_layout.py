"""Where every byte of a shard lies, and the one gate that every file passes.

docs/format.md is the specification. The place of each section follows from five
numbers (items, item size, block size, documents, bytes of metadata), so the gate
computes the layout and requires the file to agree with it in every field: no section
can overlap another, leave the file, or be larger than the file is.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_format import _dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

FORMAT_VERSION = 1
HEAD_MAGIC = b"\x89ROX\r\n\x1a\n"
FOOT_MAGIC = b"ROXfoot\n"
HEAD_SIZE = 4096
FOOT_SIZE = 256
DEFAULT_BLOCK_SIZE = 4096
MIN_BLOCK_SIZE = 512
MAX_BLOCK_SIZE = 1 << 24
MAX_METADATA_SIZE = 1 << 20
MAX_SEPARATOR_LENGTH = 1 << 10

FIRST_IS_CONTINUED = 1
LAST_CONTINUES = 2

_HEAD = struct.Struct("<8sII16sIII")
_FOOT = struct.Struct("<II4QII9QII")
_CRC = struct.Struct("<I")
_DIGEST_SIZE = 32
_FOOT_CONTENT = _FOOT.size
_FOOT_DIGEST = _FOOT_CONTENT + _DIGEST_SIZE
_FOOT_ZEROS = _FOOT_DIGEST + _DIGEST_SIZE
_FOOT_CRC = FOOT_SIZE - len(FOOT_MAGIC) - _CRC.size


@dataclass(frozen=True, slots=True)
class Head:
    """What is known of a shard before its first token.

    Attributes:
        dtype_name: Name of the item type, one of `_dtypes.NAMES`.
        block_size: Bytes that one checksum covers; a power of two.
        separator_length: Items at the end of each document that the writer added.
    """

    dtype_name: str
    block_size: int
    separator_length: int

    @property
    def item_size(self) -> int:
        """Bytes of one item."""
        return _dtypes.item_size(self.dtype_name)

    def pack(self) -> bytes:
        """Return the 4096 bytes of the head."""
        fields = _HEAD.pack(
            HEAD_MAGIC,
            FORMAT_VERSION,
            HEAD_SIZE,
            self.dtype_name.encode("ascii"),
            self.item_size,
            self.block_size,
            self.separator_length,
        )
        body = fields.ljust(HEAD_SIZE - _CRC.size, b"\0")
        return body + _CRC.pack(zlib.crc32(body))


@dataclass(frozen=True, slots=True)
class Sections:
    """Byte offsets of the sections, which follow one another without a gap."""

    tokens: int
    documents: int
    checksums: int
    metadata: int
    foot: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One shard as its head and foot describe it.

    Attributes:
        head: The head's fields.
        num_tokens: Items, padding not counted.
        num_documents: Documents, parts of documents included.
        min_value: Least item of an integer dtype; 0 for other dtypes and no items.
        max_value: Greatest item, likewise.
        flags: `FIRST_IS_CONTINUED`, `LAST_CONTINUES`.
        metadata_size: Bytes of the metadata.
        checksums_crc: CRC-32 of the checksum section.
        metadata_crc: CRC-32 of the metadata section.
        content_digest: BLAKE2b of what the tokens and documents are; 32 bytes.
        digest: BLAKE2b of all but the tokens; 32 bytes.
    """

    head: Head
    num_tokens: int
    num_documents: int
    min_value: int
    max_value: int
    flags: int
    metadata_size: int
    checksums_crc: int
    metadata_crc: int
    content_digest: bytes = bytes(_DIGEST_SIZE)
    digest: bytes = bytes(_DIGEST_SIZE)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type, little-endian."""
        return _dtypes.stored_dtype(self.head.dtype_name)

    @property
    def num_token_blocks(self) -> int:
        """Checksum blocks of the token section."""
        return -(-self.num_tokens * self.head.item_size // self.head.block_size)

    @property
    def num_document_blocks(self) -> int:
        """Checksum blocks of the document section."""
        return -(-self.num_documents * 8 // self.head.block_size)

    @property
    def sections(self) -> Sections:
        """Where the sections begin."""
        documents = HEAD_SIZE + self.num_token_blocks * self.head.block_size
        checksums = documents + self.num_documents * 8
        num_blocks = self.num_token_blocks + self.num_document_blocks
        metadata = checksums + num_blocks * 4
        foot = metadata + self.metadata_size
        return Sections(
            HEAD_SIZE, documents, checksums, metadata, foot, foot + FOOT_SIZE
        )

    @property
    def first_is_continued(self) -> bool:
        """Whether the first document began in the shard before."""
        return bool(self.flags & FIRST_IS_CONTINUED)

    @property
    def last_continues(self) -> bool:
        """Whether the last document goes on in the next shard."""
        return bool(self.flags & LAST_CONTINUES)

    @property
    def value_range(self) -> tuple[int, int] | None:
        """Least and greatest item of an integer dtype, None for other dtypes."""
        if _dtypes.value_range(self.head.dtype_name) is None:
            return None
        return self.min_value, self.max_value

    def fields(self, head_crc: int) -> bytes:
        """Return the first part of the foot, up to the digests."""
        at = self.sections
        return _FOOT.pack(
            FORMAT_VERSION,
            head_crc,
            self.num_tokens,
            self.num_documents,
            self.min_value & (2**64 - 1),
            self.max_value & (2**64 - 1),
            self.flags,
            0,
            at.tokens,
            at.documents - at.tokens,
            at.documents,
            at.checksums - at.documents,
            at.checksums,
            at.metadata - at.checksums,
            at.metadata,
            at.foot - at.metadata,
            at.stop,
            self.checksums_crc,
            self.metadata_crc,
        )

    def pack_foot(self, head: bytes) -> bytes:
        """Return the 256 bytes of the foot that closes a shard with this head."""
        body = self.fields(_crc_of_head(head)) + self.content_digest + self.digest
        body = body.ljust(_FOOT_CRC, b"\0")
        return body + _CRC.pack(zlib.crc32(body)) + FOOT_MAGIC


def digests(
    layout: Layout,
    head: bytes,
    documents: Iterable[bytes | memoryview],
    checksums: bytes | memoryview,
    metadata: bytes,
) -> tuple[bytes, bytes]:
    """Return the content digest and the digest of a shard (docs/format.md, section 8).

    Args:
        layout: Its fields; the two digests in it are not read.
        head: The head, 4096 bytes.
        documents: The document section, in pieces.
        checksums: The checksum section.
        metadata: The metadata section.
    """
    fields = layout.fields(_crc_of_head(head))
    content = hashlib.blake2b(head[16 : _HEAD.size], digest_size=_DIGEST_SIZE)
    content.update(fields[8:44])
    whole = hashlib.blake2b(head, digest_size=_DIGEST_SIZE)
    for piece in documents:
        content.update(piece)
        whole.update(piece)
    content.update(checksums)
    whole.update(checksums)
    whole.update(metadata)
    whole.update(fields)
    whole.update(content.digest())
    return content.digest(), whole.digest()


def parse_layout(head: bytes, foot: bytes, file_size: int, path: str) -> Layout:
    """Check a file's head and foot against its size, and return what they say.

    This is the gate: nothing of a file is used before it has passed.

    Args:
        head: The first 4096 bytes of the file, or all of a smaller file.
        foot: The last 256 bytes of the file, or all of a smaller file.
        file_size: Bytes of the file.
        path: Names the file in errors.

    Raises:
        ShardError: The file is no shard, is damaged, or of an unknown version.
    """
    parsed = _parse_head(head, file_size, path)
    return _parse_foot(parsed, head, foot, file_size, path)


def check_block_size(block_size: int) -> None:
    """Check that a block size is one the format allows.

    Raises:
        ValueError: It is no power of two in [512, 2**24].
    """
    in_range = MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
    if not in_range or block_size & (block_size - 1):
        raise ValueError(
            f"block_size must be a power of two in [{MIN_BLOCK_SIZE}, "
            f"{MAX_BLOCK_SIZE}] bytes, got {block_size}"
        )


def _parse_head(head: bytes, file_size: int, path: str) -> Head:
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
    if zlib.crc32(head[: -_CRC.size]) != _crc_of_head(head):
        raise ShardError(
            f"{path}: the head (bytes 0 to {HEAD_SIZE}) does not match its checksum; "
            "the file is damaged, so fetch or write this shard again"
        )
    _, version, size, raw_name, item_size, block_size, separator = _HEAD.unpack_from(
        head
    )
    if version != FORMAT_VERSION:
        raise ShardError(
            f"{path}: format version {version}, but this reader knows version "
            f"{FORMAT_VERSION}; install a newer roxxel-format"
        )
    name = raw_name.rstrip(b"\0").decode("ascii", "replace")
    if name not in _dtypes.NAMES:
        raise ShardError(
            f"{path}: unknown item type {name!r}; install a newer roxxel-format"
        )
    if (
        size != HEAD_SIZE
        or item_size != _dtypes.item_size(name)
        or not MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
        or block_size & (block_size - 1)
        or separator > MAX_SEPARATOR_LENGTH
        or head[_HEAD.size : -_CRC.size].strip(b"\0")
        or raw_name != name.encode("ascii").ljust(16, b"\0")
    ):
        raise ShardError(
            f"{path}: the head contradicts itself (head size {size}, item size "
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
    (crc,) = _CRC.unpack_from(foot, _FOOT_CRC)
    if zlib.crc32(foot[:_FOOT_CRC]) != crc:
        raise ShardError(
            f"{path}: the foot (bytes {file_size - FOOT_SIZE} to {file_size}) does not "
            "match its checksum; the file is damaged, so fetch or write it again"
        )
    fields = _FOOT.unpack_from(foot)
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
        content_digest=foot[_FOOT_CONTENT:_FOOT_DIGEST],
        digest=foot[_FOOT_DIGEST:_FOOT_ZEROS],
    )
    # Counts first: what follows would overflow on absurd ones.
    if (
        num_tokens * head.item_size + num_documents * 8 + metadata_size > file_size
        or layout.fields(_crc_of_head(head_bytes)) != foot[:_FOOT_CONTENT]
        or layout.sections.stop != file_size
        or foot[_FOOT_ZEROS:_FOOT_CRC].strip(b"\0")
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
    limits = _dtypes.value_range(layout.head.dtype_name)
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


def _crc_of_head(head: bytes) -> int:
    (crc,) = _CRC.unpack_from(head, HEAD_SIZE - _CRC.size)
    return crc
