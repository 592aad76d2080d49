"""`system.log` and `metrics.jsonl` of one folder, written by a thread of their own.

An error of a write is kept, and raised by the next flush or by closing.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from roxxel_train._log.lines import (
    cut_rows,
    drop_torn_row,
    end_torn_line,
    json_line,
    text_line,
)
from roxxel_train._log.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

METRICS_FILE = "metrics.jsonl"
SYSTEM_FILE = "system.log"


class LogFiles:
    """Both files of a folder. A call queues its work; only `cut` and `flush` wait.

    Args:
        folder: Created when missing.

    Attributes:
        was_torn: Whether the last row was half written, and so dropped.

    Raises:
        BlockingIOError: Another `Logger` has locked the rows.
        OSError: A file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rows_path = folder / METRICS_FILE
        with ExitStack() as on_error:
            self._rows = _LogFile(self._rows_path, json_line)
            on_error.callback(self._rows.close)
            self._rows.lock()
            self._text = _LogFile(folder / SYSTEM_FILE, text_line)
            on_error.pop_all()
        end_torn_line(folder / SYSTEM_FILE)
        self.was_torn = drop_torn_row(self._rows_path)
        self._worker = Worker("roxxel-log")

    def text(self, level: str, message: str, stack: str) -> None:
        """Append to `system.log`."""
        self._worker.put(self._text.write, level, message, stack)

    def row(self, row: Mapping[str, Any]) -> None:
        """Append to `metrics.jsonl`."""
        self._worker.put(self._rows.write, row)

    def cut(self, step: int, *, evaluated: bool) -> int:
        """Drop the rows after `step`; return their number."""
        return self._worker.call(
            lambda: cut_rows(self._rows_path, step, evaluated=evaluated)
        )

    def flush(self) -> None:
        """Write what is queued, and flush both files to the disk.

        Raises:
            Exception: A line could not be written.
        """
        self._worker.call(self._text.sync)
        self._worker.call(self._rows.sync)

    def close(self) -> None:
        """Write what is queued, and close both files.

        Raises:
            Exception: A line could not be written, and no flush has raised it yet.
        """
        self._worker.close()
        with ExitStack() as stack:
            stack.callback(self._rows.close)
            stack.callback(self._text.close)


class _LogFile:
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
