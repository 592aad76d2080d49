"""Open one input and look at its head: a file, the standard input, or an object."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from roxxel_store.client import bucket_of
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
from roxxel_prepare._inputs.object_file import ObjectRanges, buffered_object

if TYPE_CHECKING:
    from collections.abc import Generator

    from roxxel_store.client import ObjectVersion

_BUFFER = 1 << 18
"""Buffer size for a file that is read in order. To read 81 MB of lines of 11 kB takes
13 ms of CPU; it takes 33 ms with Python's own 8 KiB, because each line is then joined
from pieces.
"""


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
        with ObjectRanges(bucket, name, version or bucket.version(name)) as ranges:
            yield buffered_object(ranges, ahead_to)
    else:
        with Path(path).open("rb", -1 if ahead_to == 0 else _BUFFER) as file:
            yield file


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
