"""A shard in memory: its sections as views of the map, checked where they are used."""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from os import SEEK_END, lseek
from typing import TYPE_CHECKING

import numpy as np

from roxxel_format._read.opening import changed
from roxxel_format._read.windows import AllWindows
from roxxel_format._spec.layout import HEAD_SIZE
from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._spec.layout import Layout

_DOCUMENTS_AT_ONCE = 1 << 16


class ShardMap:
    """A shard mapped into memory, for as long as somebody holds a view of it.

    Touching a page behind the end of a file that was cut short ends the process, so
    every access to the map asks for the size of the file first.

    Args:
        path: Names the file in errors.
        layout: What the file was found to hold.
        fd: Of the file; closed with the map, or where that cannot be made.
        checked: Whether `ends` and `ends_around` compare blocks with their checksums
            each time.
    """

    __slots__ = (
        "__weakref__",
        "_checked",
        "_checksums",
        "_ends",
        "_fd",
        "_layout",
        "_map",
        "_path",
        "_size",
        "_tokens",
        "_windows",
    )

    def __init__(self, path: str, layout: Layout, fd: int, *, checked: bool) -> None:
        self._fd = fd
        self._path = path
        self._layout = layout
        self._checked = checked
        self._size = layout.sections.stop
        self._ends: npt.NDArray[np.int64] | None = None
        self._checksums: npt.NDArray[np.uint32] | None = None
        self._windows: AllWindows | None = None
        self._map = mmap.mmap(fd, self._size, access=mmap.ACCESS_READ)
        self._tokens: Tokens = np.frombuffer(
            self._map, layout.dtype, layout.num_tokens, layout.sections.tokens
        )

    # Bound here: when a program ends, `os` may be gone before the map is.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)

    @property
    def tokens(self) -> Tokens:
        """All items; a read-only view, shape `(num_tokens,)`.

        Raises:
            ShardError: The file was cut short after it was mapped.
        """
        self.check_size()
        return self._tokens

    def gather(self, starts: npt.NDArray[np.int64], length: int) -> Tokens:
        """Return copies of the windows that begin at `starts`.

        All windows of one length are kept, as a view, for the next call.

        Args:
            starts: First item of each, shape `(n,)`; windows stay inside.
            length: Items of each, from 1 to those of the shard.

        Returns:
            Shape `(n, length)`, of the stored dtype; owned by the caller.

        Raises:
            ShardError: The file was cut short after it was mapped.
        """
        if lseek(self._fd, 0, SEEK_END) != self._size:  # check_size, without the call
            raise changed(self._path)
        windows = self._windows
        if windows is None or windows.length != length:
            windows = self._windows = AllWindows(self._tokens, length)
        return windows.gather(starts)

    @property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """CRC-32 of each token block, then of each document block.

        Raises:
            ChecksumError: The section does not match its own checksum.
            ShardError: The file was cut short after it was mapped.
        """
        self.check_size()
        if self._checksums is None:
            layout, at = self._layout, self._layout.sections
            data = memoryview(self._map)[at.checksums : at.metadata]
            if zlib.crc32(data) != layout.checksums_crc:
                raise self._damaged("checksums", None, at.checksums)
            self._checksums = np.frombuffer(data, "<u4")
        return self._checksums

    @property
    def document_ends(self) -> npt.NDArray[np.int64]:
        """End of each document in items; checked when it is first used.

        Raises:
            ShardError: The section is damaged, its ends are not in order, or the file
                was cut short after it was mapped.
        """
        self.check_size()
        if self._ends is None:
            layout, at = self._layout, self._layout.sections
            for block in range(layout.num_document_blocks):
                self.check_block(layout.num_token_blocks + block)
            # Signed, for numpy compares unsigned 64-bit integers with others as floats.
            ends = np.frombuffer(self._map, "<i8", layout.num_documents, at.documents)
            self._check_ends(ends)
            self._ends = ends
        return self._ends

    def check_size(self) -> None:
        """Check that the mapped file has the size it was opened with.

        Raises:
            ShardError: It has another.
        """
        # By a descriptor, also of a file that lost its name; the quickest way to ask.
        if lseek(self._fd, 0, SEEK_END) != self._size:
            raise changed(self._path)

    def check_block(self, index: int, data: bytes | memoryview | None = None) -> None:
        """Compare one block with its checksum.

        Args:
            index: Counts the token blocks, then the document blocks.
            data: The block's bytes. Default: those of the map.

        Raises:
            ChecksumError: They differ.
        """
        start, stop = self.block_span(index)
        if data is None:
            data = self.section(start, stop)
        if zlib.crc32(data) != int(self.checksums[index]):
            num_token_blocks = self._layout.num_token_blocks
            if index < num_token_blocks:
                raise self._damaged("tokens", index, start)
            raise self._damaged("documents", index - num_token_blocks, start)

    def block_span(self, index: int) -> tuple[int, int]:
        """Return the bytes `[start, stop)` that one checksum covers."""
        layout, at = self._layout, self._layout.sections
        size = layout.head.block_size
        if index < layout.num_token_blocks:
            start = at.tokens + index * size
            return start, start + size
        start = at.documents + (index - layout.num_token_blocks) * size
        return start, min(start + size, at.checksums)

    def read_checked(self, start: int, stop: int) -> Tokens:
        """Return a copy of tokens `[start, stop)` after checking every block of it.

        Reads through the descriptor, not the map: the bytes that are returned are
        those that were checked, and a file that has shrunk is an error.

        Raises:
            ShardError: A block is damaged, or the file has shrunk.
        """
        layout = self._layout
        item_size, block_size = layout.head.item_size, layout.head.block_size
        if start >= stop:
            return np.empty(0, layout.dtype)
        first = start * item_size // block_size
        last = -(-stop * item_size // block_size)
        data = self.read_blocks(first, last)
        view = memoryview(data)
        for index in range(first, last):
            at = (index - first) * block_size
            self.check_block(index, view[at : at + block_size])
        skipped = start * item_size - first * block_size
        return np.frombuffer(data, layout.dtype, stop - start, skipped)

    def will_need(self, start: int, stop: int) -> None:
        """Ask the system to read the pages of tokens `[start, stop)` ahead.

        Raises:
            ShardError: The file was cut short after it was mapped.
        """
        self.check_size()
        item_size = self._layout.head.item_size
        offset = HEAD_SIZE + start * item_size
        skipped = offset % mmap.PAGESIZE
        length = (stop - start) * item_size + skipped
        if hasattr(mmap, "MADV_WILLNEED"):
            with contextlib.suppress(OSError):  # a hint
                self._map.madvise(mmap.MADV_WILLNEED, offset - skipped, length)

    def read_blocks(self, first: int, last: int) -> bytes:
        """Return a copy of the bytes of token blocks `[first, last)`, unchecked.

        Raises:
            ShardError: The file has another size than when it was opened.
        """
        start, _ = self.block_span(first)
        return self._read(start, start + (last - first) * self._layout.head.block_size)

    def metadata_bytes(self) -> bytes:
        """Return a copy of the bytes of the metadata, unchecked.

        Raises:
            ShardError: The file has another size than when it was opened.
        """
        at = self._layout.sections
        return self._read(at.metadata, at.foot)

    def ends(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Return the ends of documents `[first, last)`, in items.

        Of a checked map, a copy whose blocks have been compared just now.

        Raises:
            ShardError: The section is damaged, or the file has shrunk.
        """
        ends = self.document_ends
        if not self._checked or first >= last:
            return ends[first:last]
        layout, at = self._layout, self._layout.sections
        size = layout.head.block_size
        blocks = range(first * 8 // size, -(-last * 8 // size))
        begin = at.documents + blocks.start * size
        data = self._read(begin, min(at.documents + blocks.stop * size, at.checksums))
        view = memoryview(data)
        for block in blocks:
            skipped = (block - blocks.start) * size
            self.check_block(
                layout.num_token_blocks + block, view[skipped : skipped + size]
            )
        skipped = first * 8 - blocks.start * size
        return np.frombuffer(data, "<i8", last - first, skipped)

    def ends_around(self, start: int, stop: int) -> tuple[int, npt.NDArray[np.int64]]:
        """Return the first document with items in `[start, stop)`, and the ends.

        Args:
            start: An item of the shard.
            stop: One past an item behind it.

        Returns:
            The document; and the ends from its own to the first that is not below
            `stop`, as `ends` gives them.

        Raises:
            ShardError: The section is damaged, or the file has shrunk.
        """
        low = int(np.searchsorted(self.document_ends, start, "right"))
        high = int(np.searchsorted(self.document_ends, stop, "left")) + 1
        if not self._checked:
            return low, self.document_ends[low:high]
        # The search saw the map as it is now; what it found is proved by checked ends.
        high = min(high, self._layout.num_documents)
        before = max(0, low - 1)
        ends = self.ends(before, high)
        behind = ends[: low - before]
        found = ends[low - before :]
        if (
            not found.size
            or bool((behind > start).any())
            or not start < found[0]
            or not found[-1] >= stop
            or bool((found[:-1] >= stop).any())
        ):
            raise changed(self._path)
        return low, found

    def section(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)` of the file, without copying.

        Raises:
            ShardError: The file was cut short after it was mapped.
        """
        self.check_size()
        return memoryview(self._map)[start:stop]

    def _read(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes `[start, stop)` of the file.

        Raises:
            ShardError: The file has another size than when it was opened.
        """
        self.check_size()
        data = _pread_all(self._fd, stop - start, start)
        if len(data) != stop - start:
            raise changed(self._path)
        return data

    def _check_ends(self, ends: npt.NDArray[np.int64]) -> None:
        layout = self._layout
        separator = layout.head.separator_length
        before = 0
        for at in range(0, len(ends), _DOCUMENTS_AT_ONCE):
            part = ends[at : at + _DOCUMENTS_AT_ONCE]
            bounds = np.concatenate((np.array([before], np.int64), part))
            in_order = bool((bounds[1:] >= bounds[:-1]).all())
            lengths = bounds[1:] - bounds[:-1]
            if layout.last_continues and at + len(part) == len(ends):
                lengths = lengths[:-1]
            if not in_order or bool((lengths < separator).any()):
                before = -1
                break
            before = int(part[-1])
        if before != layout.num_tokens:
            raise ShardError(
                f"{self._path}: the ends of its documents are out of order; "
                "write this shard again"
            )

    def _damaged(self, section: str, block: int | None, at: int) -> ChecksumError:
        which = f"block {block} of the {section}" if block is not None else section
        documents = ""
        if section == "tokens" and block is not None:
            documents = self._documents_in(block)
        return ChecksumError(
            f"{self._path}: {which} (byte {at} on{documents}) does not match its "
            "checksum; the bytes are damaged, so fetch or write this shard again",
            path=self._path,
            section=section,
            block=block,
            byte_offset=at,
        )

    def _documents_in(self, block: int) -> str:
        layout = self._layout
        per_block = layout.head.block_size // layout.head.item_size
        start = block * per_block
        stop = min(start + per_block, layout.num_tokens)
        try:
            ends = self.document_ends
        except ShardError:
            return ""
        first = int(np.searchsorted(ends, start, "right"))
        last = int(np.searchsorted(ends, stop - 1, "right"))
        if first == last:
            return f", document {first} of the shard"
        return f", documents {first} to {last} of the shard"


def _pread_all(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    while len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data
