"""Open regular files for reading.

This module opens every file that the package reads, except the input files of a
preparation, which may be pipes. The files must be regular, because opening a named pipe
waits for a writer, and a device may have no end.
"""

from __future__ import annotations

import errno
import os
import stat

from roxxel_format.errors import ShardError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_file(path: str | os.PathLike[str]) -> int:
    """Open a regular file for reading and return its descriptor.

    Raises ShardError for other kinds of files. Does not wait for the writer of a pipe.
    """
    try:
        fd = os.open(path, _FLAGS | os.O_NONBLOCK)
    except BlockingIOError:
        # Another process has a lease on the file; a blocking open waits for its end.
        fd = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno == errno.ENXIO:  # Opening a socket failed.
            raise _not_regular(path, os.stat(path).st_mode) from None  # noqa: PTH116
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise _not_regular(path, mode)
    return fd


def read_file(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the content of a regular file; checks its size before reading."""
    with os.fdopen(open_file(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most_bytes:
            return file.read(size)
    raise ShardError(
        f"{os.fspath(path)}: has {size} bytes, more than the limit of {most_bytes}; "
        "check the path"
    )


def _not_regular(path: str | os.PathLike[str], mode: int) -> ShardError:
    kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
    return ShardError(
        f"{os.fspath(path)}: is {kind}, not a regular file; check the path"
    )
