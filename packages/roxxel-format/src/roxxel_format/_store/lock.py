"""Who may write a corpus: one process alone, or several that append.

The lock belongs to the process that holds it, so it is gone when that process is
killed. Where the system or the file system has no such locks, writers are not kept
apart.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time
from typing import TYPE_CHECKING

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class _Want(enum.Enum):
    ALONE = enum.auto()
    SHARED = enum.auto()


class WriteLock:
    """A lock on a corpus, held from `take` to `release`.

    Args:
        path: The lock file; it exists only while writers are at work.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self.alone = False

    @contextlib.contextmanager
    def held(self, *, shared: bool) -> Generator[WriteLock]:
        """Hold the lock in a `with` block.

        Args:
            shared: Others may hold it too; `alone` says whether nobody did at first.

        Raises:
            BlockingIOError: Another process holds the lock.
        """
        self._take(shared=shared)
        try:
            yield self
        finally:
            self._release()

    def _take(self, *, shared: bool) -> None:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(fd, shared=shared)
                if _is_same_file(fd, self._path):
                    self._fd = fd
                    return
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _lock(self, fd: int, *, shared: bool) -> None:
        self.alone = _flock(fd, _Want.ALONE)
        if not self.alone and not (shared and _shared_soon(fd)):
            raise BlockingIOError(self._busy())

    def _busy(self) -> str:
        return (
            f"{self._path}: another process is writing this corpus; wait for it, "
            'or let all writers use exist="append"'
        )

    def share(self) -> None:
        """Let other writers in.

        Raises:
            BlockingIOError: Another process took the lock on the way and keeps it.
        """
        # The system lets go of the one lock before it takes the other.
        if self._fd is not None and not _shared_soon(self._fd):
            raise BlockingIOError(self._busy())

    def _release(self) -> None:
        if self._fd is None:
            return
        # The last one out removes the file; a newcomer notices and makes another.
        if _flock(self._fd, _Want.ALONE) and _is_same_file(self._fd, self._path):
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._fd)
        self._fd = None


def _shared_soon(fd: int) -> bool:
    """Share a lock; whoever is alone only for a moment, to tidy up, is waited for."""
    for _ in range(40):
        if _flock(fd, _Want.SHARED):
            return True
        time.sleep(0.05)
    return False


def _flock(fd: int, want: _Want) -> bool:
    if fcntl is None:
        return True
    operation = fcntl.LOCK_EX if want is _Want.ALONE else fcntl.LOCK_SH
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # this file system has no locks
        return True
    return True


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
