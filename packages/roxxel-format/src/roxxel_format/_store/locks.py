"""Locks between processes: `flock` on files beside the manifest.

The system releases a lock when its process ends, however it ends. The lock files of a
corpus are never removed: a process that waits for a removed file would hold a lock that
nobody else sees. (A lock on a draft, which is renamed or removed, checks for that.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from roxxel_format._store.local import draft_path

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_format._store.corpus_name import CorpusName

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def committing(name: CorpusName) -> AbstractContextManager[None]:
    """Wait until no other process compares and replaces the manifest.

    Raises:
        OSError: The file system has no working `flock`, or the lock file cannot be
            opened. So for the other locks of this module.
    """
    return _held(name.commit_lock, fcntl.LOCK_EX)


def writing(name: CorpusName) -> AbstractContextManager[None]:
    """Keep `clean` away while new shards are not committed; waits for `clean`."""
    return _held(name.write_lock, fcntl.LOCK_SH)


def alone(name: CorpusName) -> AbstractContextManager[None]:
    """Keep all other writes of a corpus away; waits for `clean`.

    The lock of a corpus of one file is its draft.

    Raises:
        BlockingIOError: A write is going on.
    """
    busy = f"{name.pattern}: a write of this corpus is going on; wait for it"
    operation = fcntl.LOCK_EX | fcntl.LOCK_NB
    if name.manifest is None:
        return _held(draft_path(name.single), operation, busy)
    return _held(name.write_lock, operation, busy, wait_for_exclusive=True)


@contextlib.contextmanager
def _held(
    path: Path, operation: int, busy: str = "", *, wait_for_exclusive: bool = False
) -> Generator[None]:
    fd = _locked(path, operation, busy, wait_for_exclusive=wait_for_exclusive)
    try:
        yield
    finally:
        os.close(fd)


def _locked(path: Path, operation: int, busy: str, *, wait_for_exclusive: bool) -> int:
    """Return a descriptor that holds a lock.

    Args:
        path: The lock file.
        operation: Of `flock`.
        busy: Says in an error who holds the lock.
        wait_for_exclusive: Whether to wait for a process that holds the lock alone:
            writers share the lock for long, and `clean` holds it alone for a moment.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, operation)
            if _is_same_file(fd, path):
                return fd
        except BlockingIOError:
            is_shared = _can_share(fd)
            os.close(fd)
            if wait_for_exclusive and not is_shared:
                with _held(path, fcntl.LOCK_SH):
                    continue
            raise BlockingIOError(busy) from None
        except OSError as error:
            os.close(fd)
            if error.errno not in _NO_LOCKS:
                raise
            raise OSError(
                error.errno,
                "this file system has no working flock, so nothing keeps two writers "
                "apart; write the corpus on another disk and copy it here",
                str(path),
            ) from error
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the file was renamed or removed while this process waited


def _can_share(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
