"""A file of the log: lines are appended to it, and errors are kept until a flush."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LogFile:
    """Appends lines to one file.

    Args:
        path: The file, created when missing.
        format_line: Makes the line from the arguments of `write`.
    """

    def __init__(self, path: Path, format_line: Callable[..., str]) -> None:
        self._format_line = format_line
        # A lone surrogate in a text is escaped: it must not end the run.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._failure: Exception | None = None
        self._is_failure_raised = False
        self._is_synced = True

    def lock(self) -> None:
        """Lock the file against other writers.

        Raises:
            BlockingIOError: Another `Logger` has locked the file.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                f"{self._file.name}: another Logger is open in this folder; "
                "use that Logger (Trainer(logger=...)) or give another folder"
            ) from error
        except OSError:
            pass  # The file system has no locks, so a second writer is not noticed.

    def write(self, *values: Any) -> None:
        """Append one line; an error is kept for `sync` and `close`."""
        try:
            self._file.write(self._format_line(*values))
            # The kernel gets every line at once: the process may be killed any time.
            self._file.flush()
            self._is_synced = False
        except OSError as error:
            named = OSError(error.errno, error.strerror, self._file.name)
            self._failure = self._failure or named
        except Exception as error:  # noqa: BLE001 - raised by sync() and close()
            self._failure = self._failure or error

    def sync(self) -> None:
        """Flush the lines to the disk.

        Raises:
            Exception: A line could not be written, now or before.
        """
        if self._failure is not None:
            self._is_failure_raised = True
            raise self._failure
        if not self._is_synced:
            os.fsync(self._file.fileno())
            self._is_synced = True

    def close(self) -> None:
        """Close the file.

        Raises:
            Exception: A line could not be written, and `sync` has not raised it yet.
        """
        # Unlock explicitly: a forked child may still have the file open.
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        try:
            self._file.close()
        except OSError as error:
            self._failure = self._failure or error
        if self._failure is not None and not self._is_failure_raised:
            raise self._failure
