"""Locks on files and folders by `flock`.

The system releases a lock when its process ends or is killed. A locked file may be
renamed or removed: a draft when it is complete, and the lock files of a corpus if there
is no manifest. A process that waited for such a file would get a lock that no other
process sees, so `_locked` checks that a locked file still has its name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder exclusively, without waiting.

    Returns False if another process holds a lock, None if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def lock_folder(path: Path) -> int | None:
    """Lock a folder exclusively, without waiting; return it for `unlock_folder`.

    Returns None if another process holds the lock. On a file system without locks,
    every process succeeds.

    Raises:
        FileNotFoundError: There is no such folder, or it was renamed just now.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if try_lock(descriptor) is False:
        os.close(descriptor)
        return None
    if not _is_same_file(descriptor, path):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "was renamed or removed", str(path))
    return descriptor


def unlock_folder(descriptor: int) -> None:
    """Release what `lock_folder` returned."""
    unlock(descriptor)
    os.close(descriptor)


def unlock(descriptor: int) -> None:
    """Release a lock. Closing the file is not enough if a forked child shares it."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def tried(path: Path) -> Generator[bool]:
    """Hold a lock file while the block runs; make the file if it does not exist.

    Yields False if another process holds it. On a file system without locks, every
    process succeeds.
    """
    descriptor = open_lock(path)
    try:
        yield try_lock(descriptor) is not False
    finally:
        os.close(descriptor)


def open_lock(path: Path) -> int:
    """Open a lock file and return its descriptor; make the file if it does not exist.

    Whoever may write in the folder may lock the file, whatever the umask of the user
    who made it.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError as error:
        # Another user made the file; a lock needs no more than a descriptor.
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise error from None
    mode = os.fstat(fd).st_mode
    may_write = path.parent.stat().st_mode & 0o022
    missing = (may_write | may_write << 1) & ~mode
    if missing:
        with contextlib.suppress(PermissionError):  # Another user made the file.
            os.fchmod(fd, mode | missing)
    return fd


@contextlib.contextmanager
def held(
    path: Path,
    *,
    is_shared: bool = False,
    busy: str | None = None,
) -> Generator[None]:
    """Wait for a lock file and hold it; make the file if it does not exist.

    With `busy`, does not wait, but raises BlockingIOError with this text if the lock is
    held.

    Raises:
        OSError: The file system has no working locks.
    """
    operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    if busy is not None:
        operation |= fcntl.LOCK_NB
    fd = _locked(path, operation, busy or "")
    try:
        yield
    finally:
        os.close(fd)


def _locked(path: Path, operation: int, busy: str) -> int:
    """Lock a file by `flock` with `operation`, and return its descriptor.

    With LOCK_NB, raises BlockingIOError with the text `busy` if the lock is held.
    """
    while True:
        fd = open_lock(path)
        try:
            fcntl.flock(fd, operation)
            if _is_same_file(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise BlockingIOError(busy) from None
        except OSError as error:
            os.close(fd)
            if error.errno not in _NO_LOCKS:
                raise
            raise OSError(
                error.errno,
                "this file system has no working flock, so two writers would "
                "not exclude each other; write on another disk and copy the "
                "files here",
                str(path),
            ) from error
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # Try again: the file was renamed or removed during the wait.


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
