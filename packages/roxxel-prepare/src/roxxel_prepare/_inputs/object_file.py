"""Read an object in a bucket as an input file, by byte ranges.

While the object is read in order, the ranges grow to 8 MiB, and the next range is
prefetched, so a reader keeps at most 16 MiB. Other reads request exactly their bytes.
All responses must come from the same version of the object.
"""

from __future__ import annotations

import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from roxxel_store.client import ObjectVersion
from roxxel_store.errors import BucketError

if TYPE_CHECKING:
    from roxxel_store.client import Bucket

_BUFFER = 1 << 18
_SMALL_BUFFER = 1 << 14
"""Buffer size for random reads; a larger buffer would fetch bytes that nobody reads."""
_RANGE_BYTES = 8 << 20


class ObjectRanges:
    """One version of an object, read by byte ranges; close it after the last read.

    Args:
        bucket: The bucket.
        name: Name of the object.
        version: The version that every answer must have.
    """

    def __init__(self, bucket: Bucket, name: str, version: ObjectVersion) -> None:
        self.url = bucket.url_of(name)
        self.num_bytes = version.size
        self._bucket = bucket
        self._name = name
        self._version = version
        self._pool = ThreadPoolExecutor(1, "roxxel-input")
        self._ahead: tuple[tuple[int, int], Future[bytes]] | None = None

    def will_need(self, start: int, stop: int) -> None:
        """Request the bytes `[start, stop)`, for a read of exactly these bytes."""
        span = start, stop
        self._ahead = span, self._pool.submit(self._fetch, span)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`.

        Raises:
            BucketError: The object was replaced or deleted, or the store does not
                answer.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == (start, stop):
            return ahead[1].result()
        return self._fetch((start, stop))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, span: tuple[int, int]) -> bytes:
        try:
            answer = self._bucket.get(self._name, span)
        except FileNotFoundError as error:
            raise BucketError(
                f"{self.url}: was deleted after the inputs were listed; write again"
            ) from error
        if ObjectVersion(answer.size, answer.tag) != self._version:
            raise BucketError(
                f"{self.url}: was replaced after the inputs were listed; write again"
            )
        return answer.data


def buffered_object(file: ObjectRanges, ahead_to: int | None) -> BinaryIO:
    """Return an object as a seekable file.

    Reads raise BucketError, which names the URL and the bytes, if the object was
    replaced or deleted, or if the store does not answer.

    Args:
        file: The object.
        ahead_to: Byte offset up to which the object is read in order, so that ranges
            are prefetched. Default: its end.
    """
    limit = file.num_bytes if ahead_to is None else min(ahead_to, file.num_bytes)
    return io.BufferedReader(_Ranges(file, limit), _BUFFER if limit else _SMALL_BUFFER)


class _Ranges(io.RawIOBase):
    """An object as a file without a buffer; it prefetches up to `limit`."""

    def __init__(self, file: ObjectRanges, limit: int) -> None:
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
            raise ValueError(f"{self._file.url}: cannot seek to {base + offset}")
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
        self._data = memoryview(self._file.read(start, stop))
        self._start = start
