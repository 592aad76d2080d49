"""The layout of a shard: its item type, its sections, and the bytes of head and foot.

docs/format.md is the specification. Five numbers determine all offsets: item count,
item size, block size, document count, and bytes of metadata.

`parse_layout` checks the head and the foot before any other part of the file is used.
Every offset and section size must equal the value computed from these five numbers, so
no section can overlap another or leave the file.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from roxxel_format._spec.manifest import (
    DIGEST_SIZE,
    ShardTable,
)
from roxxel_format.errors import NotAShardError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

Tokens: TypeAlias = "npt.NDArray[Any]"

TEXTS = "utf8"
"""The dtype of a column of texts in a manifest."""

BFLOAT16 = "bfloat16"
_CODES = {
    "bool": "?",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}
_ITEM_SIZES = {name: np.dtype(code).itemsize for name, code in _CODES.items()}
_ITEM_SIZES[BFLOAT16] = 2
NAMES = (*_CODES, BFLOAT16)
_STRINGS = re.compile(r"S[1-9][0-9]{0,8}")

_FORMAT_VERSION = 1
_HEAD_MAGIC = b"\x89ROX\r\n\x1a\n"
_FOOT_MAGIC = b"ROXfoot\n"

HEAD_SIZE = 4096
FOOT_SIZE = 256
DEFAULT_BLOCK_SIZE = 4096
_MIN_BLOCK_SIZE = 64
_MAX_BLOCK_SIZE = 1 << 24
MAX_METADATA_SIZE = 1 << 20
_METADATA_ROOM = 1 << 11
"""Bytes for metadata that a write adds before it closes a shard."""
MAX_SEPARATOR_LENGTH = 1 << 10

# The fields of head and foot. These constants are offsets in the foot: `_FOOT_HEAD_CRC`
# (CRC of the head), `_FOOT_CONTENT` and `_FOOT_DIGEST` (the two digests), `_FOOT_ZEROS`
# (padding), and `_FOOT_CRC` (CRC of the foot).
_HEAD = struct.Struct("<8sII16sIII")
_FOOT = struct.Struct("<II4Q8x9QII")
_CRC = struct.Struct("<I")
_FOOT_HEAD_CRC = 4
_FOOT_CONTENT = _FOOT.size
_FOOT_DIGEST = _FOOT_CONTENT + DIGEST_SIZE
_FOOT_ZEROS = _FOOT_DIGEST + DIGEST_SIZE
_FOOT_CRC = FOOT_SIZE - len(_FOOT_MAGIC) - _CRC.size
_HEAD_PADDING = bytes(HEAD_SIZE - _HEAD.size - _CRC.size)
_FOOT_PADDING = bytes(_FOOT_CRC - _FOOT_ZEROS)


@dataclass(frozen=True, slots=True)
class Head:
    """The fields at the beginning of a shard.

    Each checksum covers a block of `block_size` bytes, a power of two. The writer
    appended `separator_length` items to each document.
    """

    dtype_name: str
    block_size: int
    separator_length: int

    @property
    def item_size(self) -> int:
        """Bytes of one item."""
        return item_size(self.dtype_name)

    def to_bytes(self) -> bytes:
        """Return the 4096 bytes of the head."""
        fields = _HEAD.pack(
            _HEAD_MAGIC,
            _FORMAT_VERSION,
            HEAD_SIZE,
            self.dtype_name.encode("ascii"),
            self.item_size,
            self.block_size,
            self.separator_length,
        )
        body = fields.ljust(HEAD_SIZE - _CRC.size, b"\0")
        return body + _CRC.pack(zlib.crc32(body))


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
    """The fields of a shard's head and foot; see docs/format.md.

    `num_tokens` excludes the zeros of the last block.
    `min_value` and `max_value` are 0 for item types that are not integers, and for a
    shard without items. The digests are BLAKE2b, 32 bytes; docs/format.md, section 8,
    says what each digest covers. `sections` is computed from the other fields.
    """

    head: Head
    num_tokens: int
    num_documents: int
    min_value: int
    max_value: int
    metadata_size: int
    checksums_crc: int
    metadata_crc: int
    content_digest: bytes = bytes(DIGEST_SIZE)
    digest: bytes = bytes(DIGEST_SIZE)
    sections: Sections = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        documents, checksums = documents_span(
            self.head, self.num_tokens, self.num_documents
        )
        num_blocks = self.num_token_blocks + self.num_document_blocks
        metadata = checksums + num_blocks * 4
        foot = metadata + self.metadata_size
        sections = Sections(
            HEAD_SIZE, documents, checksums, metadata, foot, foot + FOOT_SIZE
        )
        object.__setattr__(self, "sections", sections)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Item type, little-endian."""
        return stored_dtype(self.head.dtype_name)

    @property
    def num_token_blocks(self) -> int:
        """Number of checksum blocks in the token section."""
        return -(-self.num_tokens * self.head.item_size // self.head.block_size)

    @property
    def num_document_blocks(self) -> int:
        """Number of checksum blocks in the document section."""
        return -(-self.num_documents * 8 // self.head.block_size)

    def tokens_of_block(self, block: int) -> tuple[int, int]:
        """Return the tokens `[start, stop)` that have bytes in a block of tokens."""
        item_size, size = self.head.item_size, self.head.block_size
        stop = -(-(block + 1) * size // item_size)
        return block * size // item_size, min(stop, self.num_tokens)

    @property
    def value_range(self) -> tuple[int, int] | None:
        """Least and greatest item of an integer type; None for other types."""
        if value_range(self.head.dtype_name) is None:
            return None
        return self.min_value, self.max_value

    def row(self, name: str) -> tuple[Any, ...]:
        """Return the shard's row in a `ShardTable`; `name` is its file name."""
        return (
            name,
            self.sections.stop,
            self.num_tokens,
            self.num_documents,
            self.min_value,
            self.max_value,
            self.content_digest.hex(),
            self.digest.hex(),
        )

    def fields(self, head_crc: int) -> bytes:
        """Return the first part of the foot, up to the digests."""
        at = self.sections
        return _FOOT.pack(
            _FORMAT_VERSION,
            head_crc,
            self.num_tokens,
            self.num_documents,
            self.min_value & (2**64 - 1),
            self.max_value & (2**64 - 1),
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
        """Return the 256 bytes of the foot; `head` is the head of the same shard."""
        body = self.fields(_crc_of_head(head)) + self.content_digest + self.digest
        body = body.ljust(_FOOT_CRC, b"\0")
        return body + _CRC.pack(zlib.crc32(body)) + _FOOT_MAGIC


def documents_span(head: Head, num_tokens: int, num_documents: int) -> tuple[int, int]:
    """Return the bytes `[start, stop)` of the document section of a shard."""
    num_blocks = -(-num_tokens * head.item_size // head.block_size)
    start = HEAD_SIZE + num_blocks * head.block_size
    return start, start + num_documents * 8


def shard_table(names: Sequence[str], layouts: Sequence[Layout]) -> ShardTable:
    """Return the table of shards, from their file names and layouts."""
    rows = [layout.row(name) for name, layout in zip(names, layouts, strict=True)]
    return ShardTable(*map(list, zip(*rows, strict=True))) if rows else ShardTable()


def digests(
    layout: Layout,
    head: bytes,
    documents: Iterable[bytes | memoryview],
    checksums: bytes | memoryview,
    metadata: bytes,
) -> tuple[bytes, bytes]:
    """Return the content digest and the digest of a shard (docs/format.md, section 8).

    The digests in `layout` are ignored. `documents` is the document section, in pieces.
    """
    fields = layout.fields(_crc_of_head(head))
    content = hashlib.blake2b(head[16 : _HEAD.size], digest_size=DIGEST_SIZE)
    content.update(fields[8:44])
    whole = hashlib.blake2b(head, digest_size=DIGEST_SIZE)
    for piece in documents:
        content.update(piece)
        whole.update(piece)
    content.update(checksums)
    whole.update(checksums)
    whole.update(metadata)
    whole.update(fields)
    whole.update(content.digest())
    return content.digest(), whole.digest()


def shard_size_bound(data_size: int, block_size: int, metadata_size: int) -> int:
    """Return an upper bound of a shard's size.

    Args:
        data_size: Bytes of its items and of the ends of its documents.
        block_size: Bytes of a block.
        metadata_size: Bytes of the metadata that it begins with.
    """
    blocks = data_size // block_size + 2
    fixed = HEAD_SIZE + FOOT_SIZE + block_size + metadata_size + _METADATA_ROOM
    return fixed + data_size + 4 * blocks


def metadata_json(metadata: Mapping[str, Any]) -> bytes:
    """Return the JSON of a shard's metadata.

    Raises:
        TypeError: JSON cannot hold a value.
        ValueError: The JSON is too long.
    """
    try:
        data = json.dumps(
            metadata, ensure_ascii=False, sort_keys=True, allow_nan=False
        ).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"metadata cannot be stored as JSON ({error}); use strings, finite "
            "numbers, lists and dicts"
        ) from error
    if len(data) > MAX_METADATA_SIZE:
        raise ValueError(
            f"metadata has {len(data)} bytes as JSON, more than {MAX_METADATA_SIZE}; "
            "store large values in a separate file"
        )
    return data


def check_block_size(block_size: int) -> None:
    """Raise ValueError unless a block size is a power of two in [64, 2**24]."""
    in_range = _MIN_BLOCK_SIZE <= block_size <= _MAX_BLOCK_SIZE
    if not in_range or block_size & (block_size - 1):
        raise ValueError(
            f"block_size must be a power of two in [{_MIN_BLOCK_SIZE}, "
            f"{_MAX_BLOCK_SIZE}] bytes, got {block_size}"
        )


@cache
def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian dtype of an item type, by its name.

    `bfloat16` is `ml_dtypes.bfloat16` if ml_dtypes is installed, else `uint16` with the
    same bits.
    """
    if name == BFLOAT16:
        try:
            ml_dtypes = importlib.import_module("ml_dtypes")
        except ModuleNotFoundError:
            return np.dtype("<u2")
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(_CODES[name])


def column_dtype(name: str) -> np.dtype[Any] | None:
    """Return the dtype of a column by its name; None if the name is unknown.

    The name is an item type, bytes of a fixed length such as `S36`, or the name for
    texts, whose dtype is object.
    """
    if name == TEXTS:
        return np.dtype(object)
    if name in NAMES:
        return stored_dtype(name)
    return np.dtype(name) if _STRINGS.fullmatch(name) else None


def item_size(name: str) -> int:
    """Return the size of an item in bytes."""
    return _ITEM_SIZES[name]


def stored_name(dtype: Any) -> str:
    """Return the item type of a dtype; raise TypeError if a shard cannot hold it."""
    if isinstance(dtype, str) and dtype == BFLOAT16:
        return BFLOAT16
    name = np.dtype(dtype).name
    if name not in NAMES:
        raise TypeError(
            f"a shard cannot hold items of dtype {name}; use one of {', '.join(NAMES)}"
        )
    return name


@cache
def value_range(name: str) -> tuple[int, int] | None:
    """Return the least and greatest value of an integer or bool type, or None."""
    if name == "bool":
        return 0, 1
    return None if name == BFLOAT16 else integer_range(np.dtype(name))


def check_float(what: str, item: float, name: str) -> None:
    """Raise TypeError if items of a dtype are given as integers, unlike this one."""
    if name == BFLOAT16 or value_range(name) is not None:
        raise TypeError(
            f"{what} {item!r} is not an integer, but {name} items are given as "
            "integers; pass the item, for bfloat16 its 16 bits"
        )


def integer_range(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the least and greatest value of a dtype of integers, else None."""
    if dtype.kind not in "iu":
        return None
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _crc_of_head(head: bytes) -> int:
    (crc,) = _CRC.unpack_from(head, HEAD_SIZE - _CRC.size)
    return crc


def is_head_of(head: bytes, foot: bytes) -> bool:
    """Return whether a foot holds the checksum of a head."""
    return foot[_FOOT_HEAD_CRC:][: _CRC.size] == head[-_CRC.size :]


def is_shard_head(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a shard."""
    return head.startswith(_HEAD_MAGIC)


def parse_layout(head: bytes, foot: bytes, file_size: int, path: str) -> Layout:
    """Return the layout of a file; check head and foot against the size of the file.

    `head` is the first 4096 bytes of the file and `foot` the last 256; for a smaller
    file, each is the whole file.
    """
    if not _HEAD_MAGIC.startswith(head[: len(_HEAD_MAGIC)]) or not head:
        raise NotAShardError(
            f"{path}: not a Roxxel shard, it begins with {head[:8]!r}; "
            "check the path, or write the shard again (shards of the first Roxxel: "
            "roxxel_prepare.first_roxxel converts them)"
        )
    if file_size < HEAD_SIZE + FOOT_SIZE:
        raise ShardError(
            f"{path}: file has {file_size} bytes, fewer than the smallest shard "
            f"({HEAD_SIZE + FOOT_SIZE}); it was truncated, so write this shard again"
        )
    return _parse_foot(_parse_head(head, path), head, foot, file_size, path)


def _parse_head(head: bytes, path: str) -> Head:
    if zlib.crc32(head[: -_CRC.size]) != _crc_of_head(head):
        raise ShardError(
            f"{path}: the head (bytes 0 to {HEAD_SIZE}) does not match its checksum; "
            "the file is damaged, so fetch or write this shard again"
        )
    _, version, size, raw_name, width, block_size, length = _HEAD.unpack_from(head)
    name = raw_name.rstrip(b"\0").decode("ascii", "replace")
    if version != _FORMAT_VERSION or name not in NAMES:
        raise ShardError(
            f"{path}: format version {version} with items of type {name!r}, which this "
            f"reader (version {_FORMAT_VERSION}) does not know; install a newer "
            "roxxel-format"
        )
    if (
        size != HEAD_SIZE
        or width != item_size(name)
        or not _MIN_BLOCK_SIZE <= block_size <= _MAX_BLOCK_SIZE
        or block_size & (block_size - 1)
        or length > MAX_SEPARATOR_LENGTH
        or head[_HEAD.size : -_CRC.size] != _HEAD_PADDING
        or raw_name != name.encode("ascii").ljust(16, b"\0")
    ):
        raise ShardError(
            f"{path}: the head contradicts itself (head size {size}, item size "
            f"{width} of {name}, block size {block_size}, {length} items "
            "that end each document); write this shard again"
        )
    return Head(name, block_size, length)


def _parse_foot(
    head: Head, head_bytes: bytes, foot: bytes, file_size: int, path: str
) -> Layout:
    (crc,) = _CRC.unpack_from(foot, _FOOT_CRC)
    if not foot.endswith(_FOOT_MAGIC) or zlib.crc32(foot[:_FOOT_CRC]) != crc:
        raise ShardError(
            f"{path}: the end of the file (byte {file_size - FOOT_SIZE} on) is no foot "
            "whose checksum holds; the file was truncated or is damaged, so fetch or "
            "write this shard again"
        )
    fields = _FOOT.unpack_from(foot)
    _, _, num_tokens, num_documents, low, high, *rest = fields
    *_, metadata_size, _, checksums_crc, metadata_crc = rest
    signed = head.dtype_name.startswith("int")
    layout = Layout(
        head=head,
        num_tokens=num_tokens,
        num_documents=num_documents,
        min_value=_as_signed(low) if signed else low,
        max_value=_as_signed(high) if signed else high,
        metadata_size=metadata_size,
        checksums_crc=checksums_crc,
        metadata_crc=metadata_crc,
        content_digest=foot[_FOOT_CONTENT:_FOOT_DIGEST],
        digest=foot[_FOOT_DIGEST:_FOOT_ZEROS],
    )
    # Check the counts first: `layout.fields` raises struct.error for too large counts.
    if (
        num_tokens * head.item_size + num_documents * 8 + metadata_size > file_size
        or layout.fields(_crc_of_head(head_bytes)) != foot[:_FOOT_CONTENT]
        or layout.sections.stop != file_size
        or foot[_FOOT_ZEROS:_FOOT_CRC] != _FOOT_PADDING
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
    limits = value_range(layout.head.dtype_name)
    low, high = layout.min_value, layout.max_value
    if limits is None or not layout.num_tokens:
        in_range = low == high == 0
    else:
        in_range = limits[0] <= low <= high <= limits[1]
    return in_range and (layout.num_documents > 0 or not layout.num_tokens)


def _as_signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits
