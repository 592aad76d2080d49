"""Local directories in which files are staged, before an upload or after a download.

A process locks each directory that it uses. The system releases the lock when the
process ends, so a directory that is not locked belongs to no running process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_store.files import matches_in
from roxxel_store.locks import lock_folder, try_lock, unlock_folder
from roxxel_store.swap import is_name

from roxxel_ckpt.errors import CheckpointWriteError, brief

if TYPE_CHECKING:
    from collections.abc import Generator


_PREFIX = "roxxel-ckpt-"


class Copies:
    """The local directories in which one program stages files.

    Args:
        local: Directory in which copies stay; several programs may share it. None uses
            a temporary directory, which is removed at the end.
    """

    def __init__(self, local: Path | None) -> None:
        self.local = local
        self._temporary: Path | None = None
        # The descriptor of each claimed directory; its lock excludes other processes.
        self._claimed: dict[Path, int] = {}
        weakref.finalize(self, _close_all, self._claimed)

    def directory(self) -> Path:
        """Return the directory of all copies."""
        return self.local or self.temporary()

    def temporary(self) -> Path:
        """Return a directory that is removed with this object.

        The first call also removes the temporary directories of killed programs.
        """
        if self._temporary is None:
            parent = Path(tempfile.gettempdir())
            with storing(parent):
                _remove_orphans(parent)
                self._temporary, descriptor = _new_temporary()
            weakref.finalize(
                self, _remove_temporary, self._temporary, descriptor, os.getpid()
            )
        return self._temporary

    def claim(self, directory: Path) -> bool:
        """Lock a directory of copies in `local`; return whether this succeeded.

        Returns False if another process has locked the directory. Creates the
        directory. On a system without file locks, every claim succeeds.
        """
        if self.local is None or directory in self._claimed:
            return True
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = lock_folder(directory)
        if descriptor is not None:
            self._claimed[directory] = descriptor
        return descriptor is not None

    def _release(self, directory: Path) -> None:
        descriptor = self._claimed.pop(directory, None)
        if descriptor is not None:
            unlock_folder(descriptor)

    def drop(self, directory: Path, *, keep: bool) -> None:
        """End the use of a step's copies, and remove them unless `keep`.

        Kept copies stay in `local`, where they replace the copies of other steps,
        except those that another process uses. Without `local`, nothing is kept.
        """
        if keep and directory.parent == self.local:
            for other in list(directory.parent.iterdir()):
                if other != directory and is_name(other.name):
                    self._remove(other)
        else:
            shutil.rmtree(directory, ignore_errors=True)
        self._release(directory)

    def _remove(self, directory: Path) -> None:
        """Remove a directory of copies unless another process has claimed it."""
        with contextlib.suppress(OSError):
            if self.claim(directory):
                shutil.rmtree(directory, ignore_errors=True)
                self._release(directory)


@contextlib.contextmanager
def storing(path: Path) -> Generator[None]:
    """Raise CheckpointWriteError if the local disk refuses a file.

    A full disk says nothing about the checkpoint, so the error must not count as
    damage.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointWriteError(
            f"{path}: this copy of a file of a bucket cannot be stored "
            f"({error.strerror or brief(error)}); free space there, or give local= "
            "(else TMPDIR) another directory"
        ) from error


def _new_temporary() -> tuple[Path, int]:
    """Create a temporary directory; return the descriptor that locks it."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Another program may mistake the directory for an orphan before it is locked.
        with contextlib.suppress(FileNotFoundError):
            descriptor = lock_folder(path)
            if descriptor is not None:
                return path, descriptor


def _remove_orphans(parent: Path) -> None:
    """Remove the temporary directories of programs that no longer run."""
    found: list[Path] = []
    # A folder of temporary files may let its users write and not list.
    with contextlib.suppress(PermissionError):
        found = matches_in(parent, f"{_PREFIX}*")
    for path in found:
        # A directory of another user cannot be opened.
        with contextlib.suppress(OSError):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptor = os.open(path, flags)
            try:
                if try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _remove_temporary(path: Path, descriptor: int, process: int) -> None:
    """Remove a temporary directory, unless a parent of this process made it."""
    if process == os.getpid():
        shutil.rmtree(path, ignore_errors=True)
        unlock_folder(descriptor)


def _close_all(claimed: dict[Path, int]) -> None:
    while claimed:
        os.close(claimed.popitem()[1])
