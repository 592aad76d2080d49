"""What a run says: text and rows, written by a thread of its own.

The training loop only puts records on a queue; the standard library's listener takes
them off in another thread and writes `system.log` (text), `metrics.jsonl` (one JSON
object a row) and the terminal. Only process 0 says anything.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import math
import os
import queue
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import jax

from roxxel_train._progress import Progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

METRICS_FILE = "metrics.jsonl"
SYSTEM_FILE = "system.log"


class Logger:
    """Writes the text and the metrics of a run without holding it up.

    Use it as a context manager: leaving the block writes everything that is queued,
    and an exception that passes through is in `system.log`, with its traceback, before
    it goes on.

    Args:
        log_dir: Folder for `system.log` and `metrics.jsonl`, made when missing; None
            writes to the terminal only.
        terminal: Whether text and rows are shown on standard error too: a progress bar
            on a terminal, plain lines elsewhere.
    """

    def __init__(
        self, log_dir: str | os.PathLike[str] | None = None, *, terminal: bool = True
    ) -> None:
        self.log_dir = None if log_dir is None else Path(log_dir)
        self._terminal = terminal
        self._records: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._listener: logging.handlers.QueueListener | None = None
        self._files: list[_File] = []
        self._progress: Progress | None = None
        self._depth = 0

    def __enter__(self) -> Self:
        """Open the files and start the writer thread; on process 0 alone.

        Entering it again inside the block changes nothing, so a logger that is open
        already can be given to a trainer.

        Raises:
            OSError: A file cannot be written.
        """
        if jax.process_index() != 0:
            return self
        self._depth += 1
        if self._depth > 1:
            return self
        handlers: list[logging.Handler] = []
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            system = _File(self.log_dir / SYSTEM_FILE, rows=False)
            metrics = _File(self.log_dir / METRICS_FILE, rows=True)
            self._files = [system, metrics]
            handlers += self._files
        if self._terminal:
            self._progress = Progress(sys.stderr)
            handlers.append(_Screen(self._progress))
        listener = logging.handlers.QueueListener(self._records, *handlers, _Written())
        listener.start()
        self._listener = listener
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log the exception that passes, write what is queued and close the files."""
        try:
            # A SystemExit is somebody's decision to stop, not a crash.
            if error is not None and not isinstance(error, SystemExit):
                self._say(
                    logging.ERROR,
                    "the run ended with an error",
                    exc_info=(type(error), error, traceback),
                )
        finally:
            self._depth -= 1
            if self._depth <= 0:
                self.close()

    def info(self, message: str) -> None:
        """Write one line of text."""
        self._say(logging.INFO, message)

    def warning(self, message: str) -> None:
        """Write one line of text that asks for attention."""
        self._say(logging.WARNING, message)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Write one row of metrics.

        Args:
            row: Names and values that JSON can hold; NaN and infinities are written as
                strings, since JSON has no numbers for them. `flush` and `close` raise
                the error of a row that could not be written.
        """
        self._say(logging.INFO, "", row=dict(row))

    def progress(self, step: int, total_steps: int, shown: Mapping[str, str]) -> None:
        """Move the progress bar; without a terminal nothing happens.

        Args:
            step: Updates done.
            total_steps: Updates in the whole run.
            shown: Short texts beside the bar, by name.
        """
        if self._progress is not None:
            self._progress.update(step, total_steps, shown)

    def cut_metrics(self, step: int) -> int:
        """Drop the rows of updates after `step`, and a last row that is cut short.

        A run that goes on from an earlier checkpoint writes those rows again.

        Returns:
            Number of rows dropped.

        Raises:
            OSError: The file cannot be read or cut.
        """
        if self.log_dir is None or jax.process_index() != 0:
            return 0
        self.flush()
        return _cut_rows(self.log_dir / METRICS_FILE, step)

    def flush(self) -> None:
        """Wait until all that was said so far is on the disk.

        Raises:
            OSError: Something could not be written, now or since the last flush.
        """
        if self._listener is None:
            return
        written = threading.Event()
        self._say(logging.INFO, "", written=written)
        written.wait()
        for file in self._files:
            file.sync()

    def _say(
        self, level: int, message: str, exc_info: Any = None, **carried: Any
    ) -> None:
        """Put a record on the queue; processes other than the first say nothing."""
        if jax.process_index() != 0:
            return
        if self._listener is None:
            raise RuntimeError(
                "this Logger is not open, so nothing would be written; "
                "use it inside `with Logger(...) as log:`"
            )
        record = logging.LogRecord("roxxel", level, "", 0, message, None, exc_info)
        record.__dict__.update(carried)
        self._records.put(record)

    def close(self) -> None:
        """Write what is queued, close the files and end the thread.

        Raises:
            Exception: Something could not be written, and no flush has said so yet.
        """
        self._depth = 0
        listener, self._listener = self._listener, None
        if listener is None:
            return
        listener.stop()
        if self._progress is not None:
            self._progress.close()
        files, self._files = self._files, []
        for file in files:
            file.close()
        for file in files:
            file.check_unsaid()


class _File(logging.Handler):
    """Appends to one file either the text or the rows among the records."""

    def __init__(self, path: Path, *, rows: bool) -> None:
        super().__init__()
        self._rows = rows
        self._file = path.open("a", encoding="utf-8")
        self._failure: Exception | None = None
        self._is_said = False
        self.setFormatter(_SystemFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        row = getattr(record, "row", None)
        if (row is not None) != self._rows or hasattr(record, "written"):
            return
        try:
            line = self.format(record) if row is None else json.dumps(_jsonable(row))
            self._file.write(line + "\n")
            # Each line goes to the kernel at once: it may be the last one.
            self._file.flush()
        except OSError as error:
            named = OSError(error.errno, error.strerror, self._file.name)
            self._failure = self._failure or named
        except Exception as error:  # noqa: BLE001 - raised again by check()
            self._failure = self._failure or error

    def sync(self) -> None:
        self.check()
        os.fsync(self._file.fileno())

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


class _SystemFormatter(logging.Formatter):
    """Time in UTC, level and text, with the traceback where there is one."""

    converter = time.gmtime

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")


class _Screen(logging.Handler):
    """Shows text, and rows where no bar does, on the terminal."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        row = getattr(record, "row", None)
        try:
            if row is not None:
                self._progress.row(row)
            elif record.exc_info is None and not hasattr(record, "written"):
                # The interpreter shows a traceback itself, once it has passed.
                self._progress.line(record.getMessage())
        except Exception:  # noqa: BLE001 - what cannot be shown must not end the log
            self.handleError(record)


class _Written(logging.Handler):
    """Stands last and tells who waits that all handlers have seen the records."""

    def emit(self, record: logging.LogRecord) -> None:
        written = getattr(record, "written", None)
        if written is not None:
            written.set()


def _jsonable(value: Any) -> Any:
    """Return `value` with the floats that JSON cannot hold as text."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str(name): _jsonable(inner) for name, inner in items}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _cut_rows(path: Path, step: int) -> int:
    """Cut the file in place before the first row after `step`; count what goes.

    Steps never decrease from row to row, so what stays is a beginning of the file.
    A line that is no row of ours stays too, unless it is the last and cut short.
    """
    if not path.exists():
        return 0
    kept = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        if not line.endswith(b"\n") or _step_of(line) > step:
            os.truncate(path, kept)
            return len(lines) - number
        kept += len(line)
    return 0


def _step_of(line: bytes) -> int:
    """Return the step of a row, 0 for a line that is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return 0
    step = cast("dict[str, Any]", row).get("step") if isinstance(row, dict) else None
    return step if isinstance(step, int) else 0
