"""A mapped shard, whose sections are checked when they are used."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.line import ArrayPiece, Piece, Windows
from roxxel_format._read.mapped_file import MappedFile
from roxxel_format._spec.metadata import parse_metadata
from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._spec.layout import Layout

_DOCUMENTS_AT_ONCE = 1 << 16


class ShardMap:
    """A mapped shard.

    Args:
        path: Names the file in errors.
        layout: The file's layout.
        fd: Descriptor of the file, owned by the new object.

    Attributes:
        layout: As given.
    """

    __slots__ = ("__weakref__", "_checksums", "_ends", "_file", "_tokens", "layout")

    def __init__(self, path: str, layout: Layout, fd: int) -> None:
        at = layout.sections
        self.layout = layout
        self._file = MappedFile(path, fd, at.stop)
        self._file.read_at_random(at.tokens, at.documents)
        self._tokens: Tokens = self._file.array(
            layout.dtype, layout.num_tokens, at.tokens
        )
        self._ends: npt.NDArray[np.int64] | None = None
        self._checksums: npt.NDArray[np.uint32] | None = None

    @property
    def path(self) -> str:
        """Path of the file, as given."""
        return self._file.path

    @property
    def tokens(self) -> Tokens:
        """All items; a read-only view, shape `(num_tokens,)`.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        self._file.check_size()
        return self._tokens

    def piece(self, *, checked: bool) -> Piece:
        """Return the tokens as a piece of the corpus's line.

        Args:
            checked: Whether to verify the checksum of every block that is read.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        return _CheckedPiece(self) if checked else ArrayPiece(self.tokens)

    def metadata(self) -> dict[str, Any]:
        """Return the metadata.

        Raises:
            ShardError: The metadata is damaged, or the file was truncated.
        """
        at = self.layout.sections
        data = self._file.read(at.metadata, at.foot)
        return parse_metadata(data, self.layout, self.path)

    def will_need(self, start: int, stop: int) -> None:
        """Advise the system that the tokens `[start, stop)` will be read soon.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        self._file.check_size()
        item_size, offset = self.layout.head.item_size, self.layout.sections.tokens
        self._file.will_need(offset + start * item_size, offset + stop * item_size)

    # Blocks and checksums.

    @property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """CRC-32 of each token block, then of each document block.

        Raises:
            ChecksumError: The section does not match its own checksum.
            ShardError: The file was truncated after it was opened.
        """
        self._file.check_size()
        if self._checksums is None:
            at = self.layout.sections
            data = self._file.view(at.checksums, at.metadata)
            if zlib.crc32(data) != self.layout.checksums_crc:
                raise self._damaged("checksums", None, at.checksums)
            self._checksums = np.frombuffer(data, "<u4")
        return self._checksums

    def check_block(self, index: int, data: bytes | memoryview) -> None:
        """Compare one block with its checksum.

        Args:
            index: Counts the token blocks, then the document blocks.
            data: The bytes of the block.

        Raises:
            ChecksumError: They differ.
        """
        if zlib.crc32(data) == int(self.checksums[index]):
            return
        start, _ = self._block_span(index)
        num_token_blocks = self.layout.num_token_blocks
        if index < num_token_blocks:
            raise self._damaged("tokens", index, start)
        raise self._damaged("documents", index - num_token_blocks, start)

    def read_blocks(self, first: int, last: int) -> bytes:
        """Return a copy of the bytes of token blocks `[first, last)`, unchecked.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        start, _ = self._block_span(first)
        return self._file.read(start, start + (last - first) * self._block_size)

    def read_checked(self, start: int, stop: int) -> Tokens:
        """Return a copy of tokens `[start, stop)` after checking every block of it.

        Reads through the descriptor, not the map, so the bytes that are returned are
        the bytes that were checked.

        Raises:
            ShardError: A block is damaged, or the file was truncated.
        """
        layout, block_size = self.layout, self._block_size
        if start >= stop:
            return np.empty(0, layout.dtype)
        item_size = layout.head.item_size
        first = start * item_size // block_size
        last = -(-stop * item_size // block_size)
        data = self.read_blocks(first, last)
        self._check_blocks(first, data)
        skipped = start * item_size - first * block_size
        return np.frombuffer(data, layout.dtype, stop - start, skipped)

    def section(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)` of the file, without a copy.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        return self._file.view(start, stop)

    # Documents.

    @property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """End of each document in items; checked at the first use, read-only.

        Raises:
            ShardError: The section is damaged, its ends are not in order, or the file
                was truncated after it was opened.
        """
        self._file.check_size()
        if self._ends is None:
            layout, at = self.layout, self.layout.sections
            data = self._file.view(at.documents, at.checksums)
            self._check_blocks(layout.num_token_blocks, data)
            # Signed: numpy compares uint64 with other integers as floats.
            ends = np.frombuffer(data, "<i8")
            self._check_order(ends)
            self._ends = ends
        return self._ends

    def ends(self, first: int, last: int, *, checked: bool) -> npt.NDArray[np.int64]:
        """Return the ends of documents `[first, last)`, in items.

        Args:
            first: First document.
            last: One past the last document.
            checked: Whether to read and verify the blocks of these ends again.

        Raises:
            ShardError: The section is damaged, or the file was truncated.
        """
        ends = self.document_ends
        if not checked or first >= last:
            return ends[first:last]
        layout, at, size = self.layout, self.layout.sections, self._block_size
        blocks = range(first * 8 // size, -(-last * 8 // size))
        start = at.documents + blocks.start * size
        stop = min(at.documents + blocks.stop * size, at.checksums)
        data = self._file.read(start, stop)
        self._check_blocks(layout.num_token_blocks + blocks.start, data)
        skipped = first * 8 - blocks.start * size
        return np.frombuffer(data, "<i8", last - first, skipped)

    def ends_around(
        self, start: int, stop: int, *, checked: bool
    ) -> tuple[int, npt.NDArray[np.int64]]:
        """Return the first document with items in `[start, stop)`, and document ends.

        Args:
            start: An item of the shard.
            stop: Greater than `start`, at most the number of items.
            checked: As for `ends`.

        Returns:
            The document, and the ends of it and of the documents after it, up to the
            first end that is at least `stop`.

        Raises:
            ShardError: The section is damaged, or the file was truncated.
        """
        ends = self.document_ends
        low = int(np.searchsorted(ends, start, "right"))
        high = int(np.searchsorted(ends, stop, "left")) + 1
        if not checked:
            return low, ends[low:high]
        # The search read the map without a check, so checked ends must confirm it.
        high = min(high, self.layout.num_documents)
        before = max(0, low - 1)
        confirmed = self.ends(before, high, checked=True)
        found = confirmed[low - before :]
        if (
            not found.size
            or bool((confirmed[: low - before] > start).any())
            or not start < found[0]
            or not found[-1] >= stop
            or bool((found[:-1] >= stop).any())
        ):
            raise self._file.changed()
        return low, found

    @property
    def _block_size(self) -> int:
        return self.layout.head.block_size

    def _block_span(self, index: int) -> tuple[int, int]:
        """Return the bytes `[start, stop)` that one checksum covers."""
        at, size = self.layout.sections, self._block_size
        if index < self.layout.num_token_blocks:
            start = at.tokens + index * size
            return start, start + size
        start = at.documents + (index - self.layout.num_token_blocks) * size
        return start, min(start + size, at.checksums)

    def _check_blocks(self, first: int, data: bytes | memoryview) -> None:
        """Compare consecutive blocks, the last of which may be short."""
        view, size = memoryview(data), self._block_size
        for number in range(-(-len(view) // size)):
            at = number * size
            self.check_block(first + number, view[at : at + size])

    def _check_order(self, ends: npt.NDArray[np.int64]) -> None:
        """Check that ends ascend, by a separator at least, to the number of tokens."""
        layout = self.layout
        before = 0
        for at in range(0, len(ends), _DOCUMENTS_AT_ONCE):
            part = ends[at : at + _DOCUMENTS_AT_ONCE]
            starts = np.concatenate((np.array([before], np.int64), part[:-1]))
            in_order = bool((part >= starts).all())
            lengths = part - starts
            if layout.last_continues and at + len(part) == len(ends):
                lengths = lengths[:-1]
            if not in_order or bool((lengths < layout.head.separator_length).any()):
                before = -1
                break
            before = int(part[-1])
        if before != layout.num_tokens:
            raise ShardError(
                f"{self.path}: the ends of its documents are out of order; "
                "write this shard again"
            )

    def _damaged(self, section: str, block: int | None, offset: int) -> ChecksumError:
        which = section if block is None else f"block {block} of the {section}"
        documents = ""
        if section == "tokens" and block is not None:
            documents = self._documents_in(block)
        return ChecksumError(
            f"{self.path}: {which} (byte {offset} on{documents}) does not match its "
            "checksum; the bytes are damaged, so fetch or write this shard again",
            path=self.path,
            section=section,
            block=block,
            byte_offset=offset,
        )

    def _documents_in(self, block: int) -> str:
        per_block = self._block_size // self.layout.head.item_size
        start = block * per_block
        stop = min(start + per_block, self.layout.num_tokens)
        try:
            ends = self.document_ends
        except ShardError:
            return ""
        first = int(np.searchsorted(ends, start, "right"))
        last = int(np.searchsorted(ends, stop - 1, "right"))
        if first == last:
            return f", document {first} of the shard"
        return f", documents {first} to {last} of the shard"


class _CheckedPiece:
    """The tokens of a shard; every read verifies the blocks that it covers."""

    def __init__(self, shard: ShardMap) -> None:
        self._shard = shard

    def span(self, start: int, stop: int) -> Tokens:
        return self._shard.read_checked(start, stop)

    def windows(self, length: int) -> Windows:
        return _CheckedWindows(self._shard, length)


class _CheckedWindows:
    def __init__(self, shard: ShardMap, length: int) -> None:
        self._shard = shard
        self._length = length

    def __getitem__(self, start: int, /) -> Tokens:
        stop = start + self._length
        if stop > self._shard.layout.num_tokens:
            raise IndexError(stop)
        return self._shard.read_checked(start, stop)
