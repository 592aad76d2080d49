"""Open one shard; check its head (first bytes), foot (last bytes) and sections."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.files import open_file
from roxxel_store.records import parse_object

from roxxel_format._read.files import Files, ItemReads, MappedFile, OpenFile
from roxxel_format._spec.layout import (
    FOOT_SIZE,
    HEAD_SIZE,
    Layout,
    is_head_of,
    parse_layout,
)
from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._spec.layout import Head, Tokens

FETCH_AGAIN = "the bytes are damaged, so fetch or write this shard again"


class ShardMap:
    """An open shard, which checks its head, foot and sections before use.

    Only this class reads shards. A file on a disk is mapped at the first use of a
    section. In a bucket, each read of tokens fetches a range; the document index and
    the checksums stay in memory from their first use on.

    Args:
        file: The file.
        head: The head that the shard should have. It saves a request in a bucket, where
            only `verify` reads the head itself.
        remedy: What to do about damaged bytes.
        checked: Whether every read verifies its blocks. Then the document index stays
            in memory, because bytes of a map could change after the check.
    """

    def __init__(
        self,
        file: OpenFile,
        head: Head | None = None,
        remedy: str = FETCH_AGAIN,
        *,
        checked: bool = False,
    ) -> None:
        self._file = file
        self._remedy = remedy
        self._checked = checked
        self.layout = _layout_of(self._file, head)
        self._tokens: Tokens | None = None
        self._ends: npt.NDArray[np.int64] | None = None
        self._checksums: npt.NDArray[np.uint32] | None = None

    @property
    def path(self) -> str:
        """Path of the file, as given."""
        return self._file.path

    @property
    def is_mapped(self) -> bool:
        """Whether the file is on a disk."""
        return self._file.is_mapped

    @property
    def tokens(self) -> Tokens:
        """All items: a read-only view, shape `(num_tokens,)`."""
        self._file.check_size()
        if self._tokens is None:
            at = self.layout.sections
            self._file.read_at_random(at.tokens, at.documents)
            self._tokens = self._file.array(
                self.layout.dtype, self.layout.num_tokens, at.tokens
            )
        return self._tokens

    def piece(self) -> Tokens | ItemReads:
        """Return the tokens, as an array or to be read."""
        if self._checked:
            return ItemReads(self.read_checked)
        return self.tokens if self._file.is_mapped else ItemReads(self.read)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata after verifying its checksum."""
        at = self.layout.sections
        data = self._file.read(at.metadata, at.foot)
        if zlib.crc32(data) != self.layout.metadata_crc:
            raise ChecksumError(
                f"{self.path}: the metadata (byte {at.metadata} on) does not match its "
                "checksum",
                self._remedy,
                path=self.path,
                section="metadata",
                block=None,
                byte_offset=at.metadata,
            )
        where = f"{self.path} (metadata)"
        return parse_object(data, where, "write this shard again", ShardError)

    def will_need(self, start: int, stop: int, *, is_urgent: bool) -> None:
        """Prefetch the tokens `[start, stop)`."""
        self._file.check_size()
        if self._checked:
            first, last = self._blocks_of(start, stop)
            span = self._block_span(first)[0], self._block_span(last - 1)[1]
        else:
            span = self._bytes_of(start, stop)
        self._file.will_need(*span, is_urgent=is_urgent)

    def is_cold(self, token: int) -> bool:
        """Return whether reading a token would wait for a disk, or may do so."""
        return self._file.is_cold(self._bytes_of(token, token)[0])

    def will_need_sections(self, *, documents: bool, is_urgent: bool) -> None:
        """In a bucket, prefetch the sections that are not in memory yet.

        The document index needs the checksums too.
        """
        if self._file.is_mapped:
            return
        at = self.layout.sections
        if (self._checked or documents) and self._checksums is None:
            self._file.will_need(at.checksums, at.metadata, is_urgent=is_urgent)
        if documents and self._ends is None:
            self._file.will_need(at.documents, at.checksums, is_urgent=is_urgent)

    def read(self, start: int, stop: int) -> Tokens:
        """Return a copy of tokens `[start, stop)`."""
        data = self._file.read(*self._bytes_of(start, stop))
        return np.frombuffer(data, self.layout.dtype)

    # Blocks and checksums.

    @property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """CRC-32 of each token block, followed by the CRC-32 of each document block."""
        self._file.check_size()
        if self._checksums is None:
            at = self.layout.sections
            data = self._file.view(at.checksums, at.metadata)
            if zlib.crc32(data) != self.layout.checksums_crc:
                raise self._damaged("checksums", None, at.checksums)
            self._checksums = np.frombuffer(data, "<u4")
        return self._checksums

    def check_block(self, index: int, data: bytes | memoryview) -> None:
        """Raise ChecksumError if the bytes of a block do not match its checksum.

        `index` numbers the token blocks first, and then the document blocks.
        """
        if zlib.crc32(data) == int(self.checksums[index]):
            return
        start, _ = self._block_span(index)
        num_token_blocks = self.layout.num_token_blocks
        if index < num_token_blocks:
            raise self._damaged("tokens", index, start)
        raise self._damaged("documents", index - num_token_blocks, start)

    def read_blocks(self, first: int, last: int) -> bytes:
        """Return a copy of the bytes of token blocks `[first, last)`, unchecked."""
        start, _ = self._block_span(first)
        return self._file.read(start, start + (last - first) * self._block_size)

    def read_checked(self, start: int, stop: int) -> Tokens:
        """Return a copy of tokens `[start, stop)` after verifying their blocks.

        Reads through the descriptor, because bytes of the map could change between
        check and copy.
        """
        layout, block_size = self.layout, self._block_size
        if start >= stop:
            return np.empty(0, layout.dtype)
        first, last = self._blocks_of(start, stop)
        data = self.read_blocks(first, last)
        self._check_blocks(first, data)
        skipped = start * layout.head.item_size - first * block_size
        return np.frombuffer(data, layout.dtype, stop - start, skipped)

    def section(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)` of the file, without a copy."""
        return self._file.view(start, stop)

    # Documents.

    @property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """End of each document, an index of items; verified at the first use."""
        self._file.check_size()
        if self._ends is None:
            layout, at = self.layout, self.layout.sections
            read = self._file.read if self._checked else self._file.view
            data = read(at.documents, at.checksums)
            self._check_blocks(layout.num_token_blocks, data)
            # Signed, because numpy compares uint64 with other integers as floats.
            ends = np.frombuffer(data, "<i8")
            self._check_order(ends)
            self._ends = ends
        return self._ends

    @property
    def _block_size(self) -> int:
        return self.layout.head.block_size

    def _bytes_of(self, start: int, stop: int) -> tuple[int, int]:
        item_size, offset = self.layout.head.item_size, self.layout.sections.tokens
        return offset + start * item_size, offset + stop * item_size

    def _blocks_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return the blocks `[first, last)` that hold tokens `[start, stop)`."""
        item_size, block_size = self.layout.head.item_size, self._block_size
        return start * item_size // block_size, -(-stop * item_size // block_size)

    def _block_span(self, index: int) -> tuple[int, int]:
        """Return the bytes `[start, stop)` that one checksum covers."""
        at, size = self.layout.sections, self._block_size
        if index < self.layout.num_token_blocks:
            start = at.tokens + index * size
            return start, start + size
        start = at.documents + (index - self.layout.num_token_blocks) * size
        return start, min(start + size, at.checksums)

    def _check_blocks(self, first: int, data: bytes | memoryview) -> None:
        """Check consecutive blocks from `first` on; the last block may be short."""
        view, size = memoryview(data), self._block_size
        for number in range(-(-len(view) // size)):
            at = number * size
            self.check_block(first + number, view[at : at + size])

    def _check_order(self, ends: npt.NDArray[np.int64]) -> None:
        """Check that ends ascend by at least what ends each, up to `num_tokens`."""
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))[: ends.size]
        least = self.layout.head.separator_length
        # Both, because a difference of two damaged ends may wrap around.
        in_order = (ends >= starts).all() and (ends - starts >= least).all()
        if not in_order or (ends[-1] if ends.size else 0) != self.layout.num_tokens:
            raise ShardError(
                f"{self.path}: the ends of its documents are out of order; "
                "write this shard again"
            )

    def _damaged(self, section: str, block: int | None, offset: int) -> ChecksumError:
        which = section if block is None else f"block {block} of the {section}"
        return ChecksumError(
            f"{self.path}: {which} (byte {offset} on) does not match its checksum",
            self._remedy,
            path=self.path,
            section=section,
            block=block,
            byte_offset=offset,
        )


class LocalFiles(Files):
    """Opens files on a disk; prefetches nothing before a file is open."""

    def open(self, path: str, num_bytes: int | None = None) -> MappedFile:
        """Open a file; its map is made at the first use."""
        del num_bytes
        return MappedFile(path, open_file(path, ShardError))


LOCAL = LocalFiles()


def open_shard(path: str) -> ShardMap:
    """Open a shard on a disk."""
    return ShardMap(LOCAL.open(path))


def _layout_of(file: OpenFile, expected: Head | None) -> Layout:
    """Return the layout of an open shard, checked against the file's size."""
    size = file.num_bytes
    foot = file.read(max(0, size - FOOT_SIZE), size)
    head = None if expected is None else expected.to_bytes()
    if head is None or not is_head_of(head, foot):
        head = file.read(0, min(size, HEAD_SIZE))
    layout = parse_layout(head, foot, size, file.path)
    # Padding hides a wrong number of tokens from the size check, so compare the number
    # with the end of the last document: the 8 bytes before the checksums.
    stop = layout.sections.checksums
    last = file.read(stop - 8, stop) if layout.num_documents else b""
    end = int.from_bytes(last, "little")
    if end != layout.num_tokens:
        raise ShardError(
            f"{file.path}: its last document ends at token {end}, but its foot "
            f"declares {layout.num_tokens} tokens; write this shard again"
        )
    return layout
