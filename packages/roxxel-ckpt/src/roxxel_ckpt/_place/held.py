"""A folder that is found again after it was renamed.

A run may train for weeks, and somebody may rename its folder meanwhile. Files that are
open move with the folder, but a path would name a new, empty folder.
"""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path


class HeldFolder:
    """Holds a folder open from its first use, and follows it when it is renamed.

    Renames on this machine are followed. If the folder was deleted, or if the system
    does not tell its new path, the path stays as it was given.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        self._close: weakref.finalize[..., HeldFolder] | None = None

    def path(self) -> Path:
        """Return the present path of the folder; the folder need not exist yet."""
        if self._handle is not None:
            held = os.fstat(self._handle)
            if _is_same(self._path, held):
                return self._path
            now = _path_of(self._handle)
            if now is not None and _is_same(now, held):
                self._path = now
                return now
            self._release()
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return self._path
        self._close = weakref.finalize(self, os.close, self._handle)
        return self._path

    def _release(self) -> None:
        if self._close is not None:
            self._close()
        self._handle = self._close = None


def _is_same(path: Path, held: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), held)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _path_of(handle: int) -> Path | None:
    """Return the path of an open folder, if the system tells it."""
    try:
        if sys.platform == "darwin":
            import fcntl

            path = fcntl.fcntl(handle, fcntl.F_GETPATH, b"\0" * 1024)
            return Path(os.fsdecode(path.rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
    except OSError:
        return None
