"""What local disks and object stores do differently, and nothing else.

Every path of this package is an `etils.epath.Path`, the one that Orbax takes: it lists,
reads, writes and removes alike on a local disk and in an object store. Object stores
know no directories, cannot rename and have no locks, but an object appears
whole; a local disk is the other way round.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from etils import epath

if TYPE_CHECKING:
    from collections.abc import Generator

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no advisory locks of this kind
    fcntl = None

# On s3:// Orbax refuses the arrays, in the background of the first save:
# https://github.com/google/orbax/pull/2739 would mend it.
_REMOTE = ("gs://",)


def absolute(location: str | os.PathLike[str]) -> epath.Path:
    """Return a path that no later change of the working directory moves.

    Args:
        location: Local path, relative or absolute, or a URL that Orbax takes.

    Raises:
        ValueError: It is a URL of another kind.
    """
    text = os.fspath(location)
    if "://" not in text:
        # abspath, because it keeps symlinks as the user wrote them.
        return epath.Path(os.path.abspath(text))  # noqa: PTH100
    if not text.startswith(_REMOTE):
        raise ValueError(
            f"{text}: Orbax writes arrays to local paths and to gs:// alone; give one "
            "of these, such as a folder in which the bucket is mounted"
        )
    return epath.Path(text)


def is_local(path: epath.Path) -> bool:
    """Return whether a path lies on a disk that this system has mounted."""
    return "://" not in os.fspath(path)


def write_whole(path: epath.Path, text: str) -> None:
    """Write a file that appears with all of its text or not at all."""
    if not is_local(path):
        path.write_text(text)
        return
    partial = path.parent / f"{path.name}.part"
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def sync_directory(path: epath.Path) -> None:
    """Bring the names in a local directory to the disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def identity(path: epath.Path) -> tuple[int, ...] | None:
    """Return numbers that change whenever a local file is written to or replaced.

    Returns:
        Inode, size, and the times of the last changes; None where they are not known.
    """
    if not is_local(path):
        return None
    stat = os.stat(path)  # noqa: PTH116 - an epath.Path reports whole seconds
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


@contextlib.contextmanager
def lock(directory: epath.Path) -> Generator[bool, None, None]:
    """Hold a directory against other processes that save into it.

    Yields:
        False when another process holds it. The lock is the operating system's: it
        goes with the process, however that ends. Where the file system has no locks,
        everyone gets it.
    """
    if fcntl is None or not is_local(directory) or not directory.is_dir():
        yield True
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        except OSError:  # a file system without locks
            held = True
        yield held
        if held:
            # Closing is not enough: a child forked meanwhile shares the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)
