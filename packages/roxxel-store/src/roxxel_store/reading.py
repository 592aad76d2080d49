"""Open and read regular files.

Opening a named pipe waits for a writer, and a device may have no end. So whatever reads
a file by a path that somebody gave opens the file here.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_REMEDY = "check the path"


def open_file(
    path: str | os.PathLike[str],
    error: Callable[[str], Exception] = ValueError,
    remedy: str = _REMEDY,
) -> int:
    """Open a regular file for reading and return its descriptor.

    Does not wait for the writer of a pipe.

    Args:
        path: The file.
        error: Class of the error for a path that is no regular file.
        remedy: What the message tells the reader to do.

    Raises:
        ValueError: The path is a folder, a pipe, a device or a socket. An `error` is
            raised instead.
        OSError: The file is missing, or cannot be opened.
    """
    try:
        fd = os.open(path, _FLAGS | os.O_NONBLOCK)
    except BlockingIOError:
        # Another process has a lease on the file; a blocking open waits for its end.
        fd = os.open(path, _FLAGS)
    except OSError as failure:
        if failure.errno == errno.ENXIO:  # Opening a socket failed.
            mode = os.stat(path).st_mode  # noqa: PTH116 - paths may be texts
            raise error(_not_regular(path, mode, remedy)) from None
        raise
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise error(_not_regular(path, mode, remedy))
    return fd


def read_file(
    path: str | os.PathLike[str],
    max_bytes: int,
    error: Callable[[str], Exception] = ValueError,
    remedy: str = _REMEDY,
) -> bytes:
    """Return the content of a regular file of at most `max_bytes` bytes.

    The size is checked before the file is read. See `open_file` for the arguments and
    the errors; a file that is too large raises `error` too.
    """
    with os.fdopen(open_file(path, error, remedy), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= max_bytes:
            return file.read(size)
    raise error(
        f"{os.fspath(path)}: has {size} bytes, more than the limit of {max_bytes}; "
        f"{remedy}"
    )


def _not_regular(path: str | os.PathLike[str], mode: int, remedy: str) -> str:
    kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
    return f"{os.fspath(path)}: is {kind}, not a regular file; {remedy}"
