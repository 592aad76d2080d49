"""Read an object in a bucket as an input file, by byte ranges.

While the object is read in order, the ranges grow to 8 MiB, and the next range is
requested before it is needed, so a reader keeps at most 16 MiB. Other reads request
exactly their bytes. All responses must come from the same version of the object.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from roxxel_store.errors import BucketError

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from roxxel_format._read.files import OpenFile

_BUFFER = 1 << 18
_SMALL_BUFFER = 1 << 14
"""Buffer size for random reads; a larger buffer would fetch bytes that nobody reads."""
_RANGE_BYTES = 8 << 20


def buffered_object(file: OpenFile, ahead_to: int | None) -> BinaryIO:
    """Return an object as a seekable file.

    Reads raise BucketError, which names the URL and the bytes, if the object was
    replaced or deleted, or if the store does not answer.

    Args:
        file: The object.
        ahead_to: Byte offset up to which the object is read in order. Default: its end.
    """
    limit = file.num_bytes if ahead_to is None else min(ahead_to, file.num_bytes)
    return io.BufferedReader(_Ranges(file, limit), _BUFFER if limit else _SMALL_BUFFER)


class _Ranges(io.RawIOBase):
    """An object as a file without a buffer; requests ahead before `limit`."""

    def __init__(self, file: OpenFile, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._position = 0
        # The bytes of the range that was read last, and their offset in the object.
        self._data = memoryview(b"")
        self._start = 0
        self._next_bytes = _BUFFER

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._file.num_bytes,
        }[whence]
        if base + offset < 0:
            raise ValueError(f"{self._file.path}: cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        target = memoryview(buffer).cast("B")
        count = min(len(target), self._file.num_bytes - self._position)
        if count <= 0:
            return 0
        if not self._start <= self._position < self._start + len(self._data):
            self._read_range(count)
        at = self._position - self._start
        part = self._data[at : at + count]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _read_range(self, count: int) -> None:
        """Read the range that begins at the position; request the next one."""
        start, limit = self._position, self._limit
        is_next = start == self._start + len(self._data)
        self._data = memoryview(b"")  # Free the memory before the next range arrives.
        if start >= limit:
            stop = start + count
        else:
            if not is_next:
                self._next_bytes = _BUFFER
            stop = min(start + self._next_bytes, limit)
            if is_next:
                self._next_bytes = min(2 * self._next_bytes, _RANGE_BYTES)
                if stop < limit:
                    self._file.will_need(stop, min(stop + self._next_bytes, limit))
        self._data = memoryview(self._bytes(start, stop))
        self._start = start

    def _bytes(self, start: int, stop: int) -> bytes:
        path = self._file.path
        try:
            return self._file.read(start, stop)
        except ShardError as error:
            raise BucketError(
                f"{path}: was replaced after the inputs were listed; write again"
            ) from error
        except FileNotFoundError as error:
            raise BucketError(
                f"{path}: was deleted after the inputs were listed; write again"
            ) from error
