"""Open one input and look at its head: a file, the standard input, or an object."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from roxxel_store.client import ObjectVersion, bucket_of
from roxxel_store.errors import BucketError
from roxxel_store.files import POINTER_BYTES, check_no_pointer
from roxxel_store.urls import DEFAULT_TIMEOUT_S, is_url

from roxxel_prepare._inputs.formats import is_compressed
from roxxel_prepare._inputs.input_file import (
    BUFFER,
    InputError,
    Pieces,
    compression_of,
    decompressed,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from roxxel_store.client import Bucket

_BUFFER = 1 << 18
"""Buffer size for a file that is read in order. To read 81 MB of lines of 11 kB takes
13 ms of CPU; it takes 33 ms with Python's own 8 KiB, because each line is then joined
from pieces.
"""
_SMALL_BUFFER = 1 << 14
"""Buffer size for random reads of an object; a larger buffer would fetch bytes that
nobody reads.
"""
_RANGE_BYTES = 8 << 20


@contextlib.contextmanager
def opened(
    path: str, version: ObjectVersion | None = None, *, ahead_to: int | None = None
) -> Generator[BinaryIO]:
    """Open an input file; decompress it if its name says that it is compressed.

    Args:
        path: The file, or a URL; `-` is the standard input.
        version: The version of an object in a bucket. Default: the current one.
        ahead_to: Byte offset up to which an uncompressed file is read in order, so that
            an object is prefetched; 0 if it is read at random. Default: the end.

    Raises:
        OSError: The file cannot be opened or read; the error names the file.
        InputError: The bytes of the file are truncated, damaged, or in another format.
        MemoryError: The file needs more memory than there is; the error names the file.
    """
    with _naming(path):
        if path == "-":
            yield sys.stdin.buffer
            return
        if not is_compressed(path):
            with _plain_file(path, version, ahead_to) as file:
                _check_no_pointer(path, file)
                yield file
            return
        compression = compression_of(path)
        with _plain_file(path, version, None) as file:
            _check_no_pointer(path, file)
            yield decompressed(path, file, compression)


@contextlib.contextmanager
def _plain_file(
    path: str, version: ObjectVersion | None, ahead_to: int | None
) -> Generator[BinaryIO]:
    if is_url(path):
        bucket, name = bucket_of(path, DEFAULT_TIMEOUT_S)
        raw = _ObjectFile(bucket, name, version or bucket.version(name), ahead_to)
        with io.BufferedReader(
            raw, _SMALL_BUFFER if ahead_to == 0 else _BUFFER
        ) as each:
            yield each
    else:
        with Path(path).open("rb", -1 if ahead_to == 0 else _BUFFER) as file:
            yield file


class _ObjectFile(io.RawIOBase):
    """One version of an object in a bucket, as a file without a buffer.

    While the object is read in order, the ranges grow to 8 MiB, and the next range is
    prefetched, so a reader keeps at most 16 MiB. Other reads request exactly their
    bytes. All responses must come from the same version of the object.

    Reads raise BucketError, which names the URL and the bytes, if the object was
    replaced or deleted, or if the store does not answer.

    Args:
        bucket: The bucket.
        name: Name of the object.
        version: The version that every answer must have.
        ahead_to: Byte offset up to which the object is read in order, so that ranges
            are prefetched. Default: its end.
    """

    def __init__(
        self, bucket: Bucket, name: str, version: ObjectVersion, ahead_to: int | None
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._version = version
        self._limit = version.size if ahead_to is None else min(ahead_to, version.size)
        self._position = 0
        # The bytes of the range that was read last, and their offset in the object.
        self._data = memoryview(b"")
        self._start = 0
        self._next_bytes = _BUFFER
        self._pool = ThreadPoolExecutor(1, "roxxel-input")
        self._ahead: tuple[tuple[int, int], Future[bytes]] | None = None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

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
            os.SEEK_END: self._version.size,
        }[whence]
        if base + offset < 0:
            url = self._bucket.url_of(self._name)
            raise ValueError(f"{url}: cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        target = memoryview(buffer).cast("B")
        count = min(len(target), self._version.size - self._position)
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
        ahead, self._ahead = self._ahead, None
        if start >= limit:
            stop = start + count
        else:
            if not is_next:
                self._next_bytes = _BUFFER
            stop = min(start + self._next_bytes, limit)
            if is_next:
                self._next_bytes = min(2 * self._next_bytes, _RANGE_BYTES)
                if stop < limit:
                    span = stop, min(stop + self._next_bytes, limit)
                    self._ahead = span, self._pool.submit(self._fetch, span)
        if ahead is not None and ahead[0] == (start, stop):
            self._data = memoryview(ahead[1].result())
        else:
            self._data = memoryview(self._fetch((start, stop)))
        self._start = start

    def _fetch(self, span: tuple[int, int]) -> bytes:
        url = self._bucket.url_of(self._name)
        try:
            answer = self._bucket.get(self._name, span)
        except FileNotFoundError as error:
            raise BucketError(
                f"{url}: was deleted after the inputs were listed; write again"
            ) from error
        if ObjectVersion(answer.size, answer.tag) != self._version:
            raise BucketError(
                f"{url}: was replaced after the inputs were listed; write again"
            )
        return answer.data


def _check_no_pointer(path: str, file: BinaryIO) -> None:
    """Raise InputError for a pointer of Git LFS; for pipes `format_of_head` does it."""
    # The size of an object is known, so a large one costs no request.
    if file.seekable() and file.seek(0, os.SEEK_END) <= POINTER_BYTES:
        file.seek(0)
        check_no_pointer(path, file.read(), InputError)
    if file.seekable():
        file.seek(0)


def with_head(file: BinaryIO, num_bytes: int) -> tuple[bytes, BinaryIO]:
    """Return the next bytes of a file, and a file that still has them to be read."""
    head = file.read(num_bytes)
    if file.seekable():
        file.seek(-len(head), os.SEEK_CUR)
        return head, file
    buffered = cast("io.BufferedReader", file)
    pieces = chain((head,), iter(lambda: buffered.read1(BUFFER), b""))
    return head, io.BufferedReader(Pieces(pieces), BUFFER)


def index_beside(path: str) -> bytes:
    """Return the index of a `.ds` file, which says where its documents end.

    Raises:
        FileNotFoundError: There is no index.
    """
    index = path + ".index"
    try:
        with opened(index) as file:
            return file.read()
    except FileNotFoundError as error:
        name = index.rpartition("/")[2]
        raise FileNotFoundError(
            f"{path}: has no {name} beside it, which says where documents end; copy it "
            "too, or rename the file to .bin and read it with "
            "roxxel_format.foreign.FlatTokens"
        ) from error


@contextlib.contextmanager
def _naming(path: str) -> Generator[None]:
    """Add the name of the input file to every error."""
    try:
        yield
    except (InputError, ModuleNotFoundError):
        raise
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error
    except MemoryError as error:
        if str(error).startswith(path):
            raise
        raise MemoryError(
            f"{path}: needs more memory than this process can get; use fewer workers, "
            "or divide the file"
        ) from error
    except Exception as error:
        what = f"{path}: cannot be read ({type(error).__name__}: {reason(error)})"
        # A library says by a ValueError that it does not understand the bytes.
        kind = InputError if isinstance(error, ValueError) else OSError
        raise kind(f"{what}; check the file") from error
