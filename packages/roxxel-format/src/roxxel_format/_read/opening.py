"""Open a shard through the gate, and see later that a file is still the same."""

from __future__ import annotations

import os
import stat

from roxxel_format._spec.gate import parse_layout
from roxxel_format._spec.layout import FOOT_SIZE, HEAD_SIZE, Layout
from roxxel_format.errors import ShardError

_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)


def open_file(path: str) -> int:
    """Open a file for reading and return its descriptor; waits for no writer of a pipe.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return os.open(path, _FLAGS | _AT_ONCE)
    except BlockingIOError:  # a file server has a lease on it, and will give it up
        return os.open(path, _FLAGS)


def read_layout(fd: int, path: str) -> Layout:
    """Return what the head and foot of an open file say, checked against its size.

    Raises:
        ShardError: It is no shard, is damaged, or of an unknown version.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ShardError(f"{path}: not a file, so no shard; check the path")
    size = status.st_size
    head = os.pread(fd, HEAD_SIZE, 0)
    foot = os.pread(fd, FOOT_SIZE, max(0, size - FOOT_SIZE))
    layout = parse_layout(head, foot, size, path)
    # The one count that the sizes of the sections do not pin down to the item.
    last = os.pread(fd, 8, layout.sections.checksums - 8)
    end = int.from_bytes(last, "little") if layout.num_documents else 0
    if end != layout.num_tokens:
        raise ShardError(
            f"{path}: its last document ends at token {end}, but its foot declares "
            f"{layout.num_tokens} tokens; write this shard again"
        )
    return layout


def open_checked(path: str, layout: Layout) -> int:
    """Open a shard again, to read its sections, and return the descriptor.

    Raises:
        ShardError: The file is not the one whose layout was read.
    """
    fd = open_file(path)
    try:
        _check_same(fd, path, layout)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_same(fd: int, path: str, layout: Layout) -> None:
    status = os.fstat(fd)
    size = layout.sections.stop
    if stat.S_ISREG(status.st_mode) and status.st_size == size:
        head = os.pread(fd, HEAD_SIZE, 0)
        foot = os.pread(fd, FOOT_SIZE, size - FOOT_SIZE)
        # In a third of the time that parsing them takes.
        if head == layout.head.pack() and foot == layout.pack_foot(head):
            return
    if read_layout(fd, path) != layout:
        raise ShardError(
            f"{path}: the file was replaced after it was opened; open the corpus again"
        )


def changed(path: str) -> ShardError:
    """Return the error for a file that has another size than when it was opened."""
    return ShardError(
        f"{path}: the file was changed after it was opened; open the corpus again"
    )
