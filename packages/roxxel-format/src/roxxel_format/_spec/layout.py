"""The layout of a shard: offsets of its sections, and the bytes of head and foot.

docs/format.md is the specification. Five numbers determine all offsets: items, item
size, block size, documents, and bytes of metadata.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from roxxel_format._spec import dtypes

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

# The fields of head and foot, and the offsets of what follows them in the foot.
HEAD = struct.Struct("<8sII16sIII")
FOOT = struct.Struct("<II4QII9QII")
CRC = struct.Struct("<I")
_DIGEST_SIZE = 32
FOOT_CONTENT = FOOT.size
FOOT_DIGEST = FOOT_CONTENT + _DIGEST_SIZE
FOOT_ZEROS = FOOT_DIGEST + _DIGEST_SIZE
FOOT_CRC = FOOT_SIZE - len(FOOT_MAGIC) - CRC.size


@dataclass(frozen=True, slots=True)
class Head:
    """The fields at the beginning of a shard.

    Attributes:
        dtype_name: Name of the item type, one of `dtypes.NAMES`.
        block_size: Bytes that one checksum covers; a power of two.
        separator_length: Items at the end of each document that the writer added.
    """

    dtype_name: str
    block_size: int
    separator_length: int

    @property
    def item_size(self) -> int:
        """Bytes of one item."""
        return dtypes.item_size(self.dtype_name)

    def pack(self) -> bytes:
        """Return the 4096 bytes of the head."""
        fields = HEAD.pack(
            HEAD_MAGIC,
            FORMAT_VERSION,
            HEAD_SIZE,
            self.dtype_name.encode("ascii"),
            self.item_size,
            self.block_size,
            self.separator_length,
        )
        body = fields.ljust(HEAD_SIZE - CRC.size, b"\0")
        return body + CRC.pack(zlib.crc32(body))


class Sections(NamedTuple):
    """Byte offsets of the sections, which are adjacent."""

    tokens: int
    documents: int
    checksums: int
    metadata: int
    foot: int
    stop: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A shard as its head and foot describe it.

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
        content_digest: BLAKE2b over tokens and documents, by their checksums; 32 bytes.
        digest: BLAKE2b of everything but the tokens; 32 bytes.
        sections: Offsets of the sections, computed from the other fields.
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
    sections: Sections = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        num_token_blocks = self.num_token_blocks
        documents = HEAD_SIZE + num_token_blocks * self.head.block_size
        checksums = documents + self.num_documents * 8
        num_blocks = num_token_blocks + self.num_document_blocks
        metadata = checksums + num_blocks * 4
        foot = metadata + self.metadata_size
        sections = Sections(
            HEAD_SIZE, documents, checksums, metadata, foot, foot + FOOT_SIZE
        )
        object.__setattr__(self, "sections", sections)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type, little-endian."""
        return dtypes.stored_dtype(self.head.dtype_name)

    @property
    def num_token_blocks(self) -> int:
        """Checksum blocks of the token section."""
        return -(-self.num_tokens * self.head.item_size // self.head.block_size)

    @property
    def num_document_blocks(self) -> int:
        """Checksum blocks of the document section."""
        return -(-self.num_documents * 8 // self.head.block_size)

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
        if dtypes.value_range(self.head.dtype_name) is None:
            return None
        return self.min_value, self.max_value

    def fields(self, head_crc: int) -> bytes:
        """Return the first part of the foot, up to the digests."""
        at = self.sections
        return FOOT.pack(
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
        body = self.fields(crc_of_head(head)) + self.content_digest + self.digest
        body = body.ljust(FOOT_CRC, b"\0")
        return body + CRC.pack(zlib.crc32(body)) + FOOT_MAGIC


def digests(
    layout: Layout,
    head: bytes,
    documents: Iterable[bytes | memoryview],
    checksums: bytes | memoryview,
    metadata: bytes,
) -> tuple[bytes, bytes]:
    """Return the content digest and the digest of a shard (docs/format.md, section 8).

    Args:
        layout: The shard's fields; its two digests are not read.
        head: The head, 4096 bytes.
        documents: The document section, in pieces.
        checksums: The checksum section.
        metadata: The metadata section.
    """
    fields = layout.fields(crc_of_head(head))
    content = hashlib.blake2b(head[16 : HEAD.size], digest_size=_DIGEST_SIZE)
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


def check_block_size(block_size: int) -> None:
    """Check that the format allows a block size.

    Raises:
        ValueError: It is not a power of two in [512, 2**24].
    """
    in_range = MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE
    if not in_range or block_size & (block_size - 1):
        raise ValueError(
            f"block_size must be a power of two in [{MIN_BLOCK_SIZE}, "
            f"{MAX_BLOCK_SIZE}] bytes, got {block_size}"
        )


def crc_of_head(head: bytes) -> int:
    """Return the checksum in a head's last bytes."""
    (crc,) = CRC.unpack_from(head, HEAD_SIZE - CRC.size)
    return crc
