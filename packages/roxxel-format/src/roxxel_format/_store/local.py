"""The file operations that writing on a local disk needs.

Every file grows under a hidden draft name beside its own, is brought to the disk, and
then takes its name in one step. So a visible file is whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DRAFT_SUFFIX = ".partial"


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none for a folder that is missing."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - 100 000 names are many paths
    except FileNotFoundError:
        return []


def draft_path(path: Path) -> Path:
    """Return the hidden name under which a file grows."""
    return path.with_name(f".{path.name}{DRAFT_SUFFIX}")


def drafted_name(name: str) -> str | None:
    """Return the name that a draft will take, None for a file that is not a draft."""
    if name.startswith(".") and name.endswith(DRAFT_SUFFIX):
        return name[1 : -len(DRAFT_SUFFIX)]
    return None


def sync_file(fd: int) -> None:
    """Bring a file or folder to the disk.

    On macOS, fsync leaves the bytes in the cache of the drive, and F_FULLFSYNC flushes
    that too. Some file systems there have no F_FULLFSYNC (network shares); fsync is
    all that they offer.

    Raises:
        OSError: The disk cannot take the bytes.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
        else:
            return
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk.

    Raises:
        OSError: The disk cannot take them.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Put a small file in the place of another, at once and for good.

    Only one process at a time may replace a file: drafts of the same file share a name.

    Raises:
        OSError: The file cannot be written. The old file or the new one is there.
    """
    draft = draft_path(path)
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            sync_file(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def claim(path: Path) -> bool:
    """Create an empty file; return False if the name is taken.

    Of several processes that claim a name, one succeeds.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    return True
