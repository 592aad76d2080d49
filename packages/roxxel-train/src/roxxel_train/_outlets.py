"""Where records go: files, the terminal, sinks; each on a thread of its own.

A terminal that is held with Ctrl-S or a sink that waits for its server holds up nothing
but itself: the files are written, and the run goes on.
"""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roxxel_train._rows import json_line, plain_row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from roxxel_train._progress import Progress

_MOST_WAITING = 10_000
"""Records that may wait for an outlet that is not to be waited for."""


class Outlet:
    """Hands records to handlers, in order, on a thread of its own.

    Args:
        handlers: Each sees every record. What one raises would end the thread, so they
            raise nothing.
        is_lossy: Whether records are dropped when too many wait.
    """

    def __init__(self, *handlers: logging.Handler, is_lossy: bool = False) -> None:
        self._records: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_lossy = is_lossy
        self._listener = _Listener(self._records, *handlers)
        self._listener.start()

    def put(self, record: logging.LogRecord) -> bool:
        """Take a record, without waiting; return whether it was not dropped."""
        if self._is_lossy and self._records.qsize() >= _MOST_WAITING:
            return False
        self._records.put(record)
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all records so far are handled; return whether they are."""
        handled = threading.Event()
        self._records.put(handled)
        return handled.wait(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Handle what is waiting and end the thread; return whether it has ended.

        Args:
            timeout_s: How long to wait; after it the thread is left to itself, and
                ends when the handler that holds it up returns.
        """
        if timeout_s is not None and not self.wait(timeout_s):
            self._listener.enqueue_sentinel()
            return False
        self._listener.stop()
        return True


class _Listener(logging.handlers.QueueListener):
    """The standard library's, and it tells who waits that it has come so far."""

    def handle(self, record: Any) -> None:
        if isinstance(record, threading.Event):
            record.set()
        else:
            super().handle(record)


class _File(logging.Handler, ABC):
    """Appends a line for each record that is its own to one file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        # Text made of any bytes can be written: half a character ends no run.
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")
        self._failure: Exception | None = None
        self._is_said = False
        self._num_lines = self._num_synced = 0

    @abstractmethod
    def line(self, record: logging.LogRecord) -> str | None:
        """Return what to append, None for a record of another file."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.line(record)
            if line is not None:
                self._file.write(line)
                # Each line goes to the kernel at once: it may be the last one.
                self._file.flush()
                self._num_lines += 1
        except OSError as error:
            named = OSError(error.errno, error.strerror, self._file.name)
            self._failure = self._failure or named
        except Exception as error:  # noqa: BLE001 - raised again by check()
            self._failure = self._failure or error

    def sync(self) -> None:
        """Put on the disk what was appended, or raise what failed."""
        self.check()
        num_lines = self._num_lines
        if num_lines != self._num_synced:
            os.fsync(self._file.fileno())
            self._num_synced = num_lines

    def check(self) -> None:
        """Raise in the caller's thread what failed in the writer's, every time."""
        if self._failure is not None:
            self._is_said = True
            raise self._failure

    def check_unsaid(self) -> None:
        """Raise it if nobody has been told yet."""
        if not self._is_said:
            self.check()

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            self._failure = self._failure or error
        super().close()


class TextFile(_File):
    """Appends text, with the time in UTC, the level, and the traceback if any."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        formatter = logging.Formatter(
            "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ"
        )
        formatter.converter = time.gmtime
        self.setFormatter(formatter)
        if _is_torn(path):
            self._file.write("\n")

    def line(self, record: logging.LogRecord) -> str | None:
        return None if hasattr(record, "row") else self.format(record) + "\n"


class RowFile(_File):
    """Appends rows; no two of them write one file at a time.

    Raises:
        BlockingIOError: Another one has the file open.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise BlockingIOError(
                f"{path}: another Logger is open in this folder; "
                "use that one (Trainer(logger=...)) or give another folder"
            ) from error
        except OSError:
            pass  # a file system without locks: one writer is then the user's duty

    def line(self, record: logging.LogRecord) -> str | None:
        row = getattr(record, "row", None)
        return None if row is None else json_line(row)

    def close(self) -> None:
        # By name: a forked child that still has the file open would keep the lock.
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)
        super().close()


class Screen(logging.Handler):
    """Shows text, rows and progress to whoever looks."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        row = getattr(record, "row", None)
        progress = getattr(record, "progress", None)
        try:
            if row is not None:
                self._progress.row(plain_row(row))
            elif progress is not None:
                self._progress.update(*progress)
            elif hasattr(record, "status"):
                self._progress.status(record.getMessage())
            elif hasattr(record, "closing"):
                self._progress.close()
            elif not getattr(record, "unseen", False):
                self._progress.line(record.getMessage())
        except Exception:  # noqa: BLE001 - what cannot be shown must not end the log
            self.handleError(record)


class SinkHandler(logging.Handler):
    """Calls one sink with every row, until it raises.

    Args:
        sink: Called with a row; `cut` and `close` are called where it has them.
        report: Called once with what the sink raised.
    """

    def __init__(
        self, sink: Callable[..., object], report: Callable[[BaseException], None]
    ) -> None:
        super().__init__()
        self._sink = sink
        self._report = report
        self._is_dropped = False

    def emit(self, record: logging.LogRecord) -> None:
        cut = getattr(record, "cut", None)
        row = getattr(record, "row", None)
        try:
            if hasattr(record, "closing"):
                getattr(self._sink, "close", _nothing)()
            elif self._is_dropped:
                pass
            elif cut is not None:
                getattr(self._sink, "cut", _nothing)(cut)
            elif row is not None:
                self._sink(plain_row(row))
        except BaseException as error:  # noqa: BLE001 - a sink must not end the run
            if not self._is_dropped:
                self._report(error)
            self._is_dropped = True


def _nothing(*_: Any) -> None:
    """Do what a sink without this method does."""


def _is_torn(path: Path) -> bool:
    """Return whether the last line has no end."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
