"""Open a shard file through the gate: its layout and its metadata.

Nothing of a file is used before `read_layout` has checked its head and foot.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from roxxel_format._spec.gate import parse_layout
from roxxel_format._spec.layout import FOOT_SIZE, HEAD_SIZE, Layout
from roxxel_format._spec.metadata import parse_metadata
from roxxel_format.errors import ShardError

_FLAGS = os.O_RDONLY | os.O_CLOEXEC


def open_file(path: str) -> int:
    """Open a file for reading and return its descriptor.

    The open does not block: opening a pipe would otherwise wait for its writer.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        return os.open(path, _FLAGS | os.O_NONBLOCK)
    except BlockingIOError:
        # A file server holds a lease on the file, and a blocking open waits for it.
        return os.open(path, _FLAGS)


def read_layout(fd: int, path: str) -> Layout:
    """Return the layout of an open shard, checked against the file's size.

    Args:
        fd: Descriptor of the file.
        path: Names the file in errors.

    Raises:
        ShardError: The file is not a shard, is damaged, or of an unknown version.
    """
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ShardError(f"{path}: not a file, so not a shard; check the path")
    size = status.st_size
    head = os.pread(fd, HEAD_SIZE, 0)
    foot = os.pread(fd, FOOT_SIZE, max(0, size - FOOT_SIZE))
    layout = parse_layout(head, foot, size, path)
    # The size of the file does not determine the number of tokens, because the last
    # block is padded; so compare it with the end of the last document.
    last = os.pread(fd, 8, layout.sections.checksums - 8)
    end = int.from_bytes(last, "little") if layout.num_documents else 0
    if end != layout.num_tokens:
        raise ShardError(
            f"{path}: its last document ends at token {end}, but its foot declares "
            f"{layout.num_tokens} tokens; write this shard again"
        )
    return layout


def read_metadata(fd: int, layout: Layout, path: str) -> dict[str, Any]:
    """Return the metadata of an open shard.

    Args:
        fd: Descriptor of the file.
        layout: What `read_layout` returned for the file.
        path: Names the file in errors.

    Raises:
        ChecksumError: The metadata does not match its checksum.
        ShardError: The metadata is not a JSON object.
    """
    data = os.pread(fd, layout.metadata_size, layout.sections.metadata)
    return parse_metadata(data, layout, path)
