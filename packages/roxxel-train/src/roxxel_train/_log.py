"""What a run says: text and rows, written by other threads than the loop's.

The training loop only puts records on queues; threads take them off and write
`system.log` (text), `metrics.jsonl` (one JSON object a row), the terminal and the
sinks. Only process 0 says anything.
"""

from __future__ import annotations

import logging
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax

from roxxel_train._outlets import Outlet, RowFile, Screen, SinkHandler, TextFile
from roxxel_train._progress import Progress
from roxxel_train._rows import cut_rows, drop_torn_row
from roxxel_train._writable import check_writable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

METRICS_FILE = "metrics.jsonl"
SYSTEM_FILE = "system.log"

_REDRAW_S = 0.1
"""Between two moves of the bar: quicker than that nobody sees."""


class Logger:
    """Writes the text and the metrics of a run without holding it up.

    Use it as a context manager: leaving the block writes everything that is queued,
    and an exception that passes through is in `system.log`, with its traceback, before
    it goes on.

    Args:
        log_dir: Folder for `system.log` and `metrics.jsonl`, made when missing; None
            writes no files. One `Logger` at a time may be open in a folder.
        sinks: Further places for rows: each is called with every row, a dict of plain
            Python values of its own, on a thread of its own. One that raises is named
            in `system.log`, with its traceback, and gets no more rows until the logger
            is opened again; the run goes on. One that is slow holds up nobody; when
            10,000 rows wait for it, further ones are dropped. A sink may have
            `cut(step)`: a run begins, or goes on, from here, so that rows after `step`
            come (again, if they were there); and `close()`: no more rows come until the
            logger is opened again.
        terminal: Whether text and rows are shown on standard error too: a progress bar
            on a terminal or in a notebook, plain lines elsewhere.
        timeout_s: How long closing waits for the terminal, and for the sinks, to take
            what is queued. Files are waited for as long as it takes.

    Raises:
        TypeError: `sinks` holds something that cannot be called.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        sinks: Sequence[Callable[[dict[str, Any]], object]] = (),
        *,
        terminal: bool = True,
        timeout_s: float = 10.0,
    ) -> None:
        if callable(sinks):
            raise TypeError("sinks is one function; give a list of them")
        self._sinks = tuple(sinks)
        for sink in self._sinks:
            if not callable(sink):
                raise TypeError(
                    f"sinks holds a {type(sink).__name__}, which cannot be called; "
                    "give functions, or objects with __call__, that take a row"
                )
        self.log_dir: Path | None = None if log_dir is None else Path(log_dir)
        if self.log_dir is not None:
            check_writable(self.log_dir, "log_dir")
        self._terminal = terminal
        self._timeout_s = timeout_s
        self._depth = 0
        self._files: list[TextFile | RowFile] = []
        self._writer: Outlet | None = None
        self._screen: Outlet | None = None
        self._moved: tuple[int, int, Mapping[str, str]] | None = None
        self._redraw_at_s = 0.0
        self._audience: dict[str, Outlet] = {}
        self._behind: set[str] = set()

    def __enter__(self) -> Self:
        """Open the files and start the threads; on process 0 alone.

        Entering it again inside the block changes nothing, so a logger that is open
        already can be given to a trainer.

        Raises:
            BlockingIOError: Another `Logger` is open in the folder.
            OSError: A file cannot be written.
        """
        self._depth += 1
        if self._depth > 1 or jax.process_index() != 0:
            return self
        try:
            self._open()
        except BaseException:
            self._depth = 0
            self._close_files()
            raise
        return self

    def _open(self) -> None:
        was_torn = False
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            # First the one that can be refused.
            rows = RowFile(self.log_dir / METRICS_FILE)
            self._files = [rows]
            self._files.append(TextFile(self.log_dir / SYSTEM_FILE))
            was_torn = drop_torn_row(self.log_dir / METRICS_FILE)
        self._writer = Outlet(*self._files)
        # A program without a console has no standard error.
        if self._terminal and sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - the types do not know
            self._screen = Outlet(Screen(Progress(sys.stderr)), is_lossy=True)
        for index, sink in enumerate(self._sinks):
            name = f"sink {index} ({_name(sink)})"
            report = partial(self._sink_failed, name)
            self._audience[name] = Outlet(SinkHandler(sink, report), is_lossy=True)
        if was_torn:
            self.warning(f"{METRICS_FILE} ended in half a row, which was dropped")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log the exception that passes, write what is queued and close the files."""
        try:
            # A SystemExit is somebody's decision to stop, not a crash. The interpreter
            # shows the traceback itself, once it has passed.
            if error is not None and not isinstance(error, SystemExit):
                self._say(
                    logging.ERROR,
                    "the run ended with an error",
                    exc_info=(type(error), error, traceback),
                    unseen=True,
                )
        finally:
            self._depth -= 1
            if self._depth <= 0:
                self._close_after(error)

    def info(self, message: str, *, terminal: bool = True) -> None:
        """Write one line of text.

        Args:
            message: The text.
            terminal: Whether it is shown on the terminal too.
        """
        self._say(logging.INFO, message, unseen=not terminal)

    def warning(self, message: str, *, terminal: bool = True) -> None:
        """Write one line of text that asks for attention.

        Args:
            message: The text.
            terminal: Whether it is shown on the terminal too.
        """
        self._say(logging.WARNING, message, unseen=not terminal)

    def status(self, message: str) -> None:
        """Say what the run does while no step is made, such as compiling.

        The text stands beside the progress bar until the next step; without a bar, and
        in `system.log`, it is a line.
        """
        self._say(logging.INFO, message, status=True)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Write one row of metrics.

        Args:
            row: Names and values that JSON can hold, or scalars and arrays of numpy and
                JAX; names that are no text become text. NaN and infinities are written
                as text, since JSON has no numbers for them. `flush` and `close` raise
                the error of a row that could not be written.
        """
        if not self._is_speaking():
            return
        record = _record(logging.INFO, "", row=dict(row))
        self._put(record)
        for name, outlet in self._audience.items():
            if not outlet.put(record) and name not in self._behind:
                self._behind.add(name)
                self.warning(f"{name} is far behind; it misses rows from here on")

    def progress(self, step: int, total_steps: int, shown: Mapping[str, str]) -> None:
        """Move the progress bar; without one nothing is shown.

        Cheap enough for every step: the bar is drawn by another thread, a few times a
        second.

        Args:
            step: Updates done.
            total_steps: Updates in the whole run.
            shown: Short texts beside the bar, by name; not changed afterwards.
        """
        if self._screen is None:
            return
        self._moved = (step, total_steps, shown)
        now = time.monotonic()
        if now >= self._redraw_at_s:
            self._redraw_at_s = now + _REDRAW_S
            self._move_bar()

    def cut_metrics(self, step: int, *, evaluated: bool = True) -> int:
        """Drop the rows of updates after `step`, and tell the sinks.

        A run that goes on from an earlier checkpoint writes those rows again.

        Args:
            step: Updates done.
            evaluated: Whether the evaluation after them stays; else it comes again.

        Returns:
            Number of rows dropped from `metrics.jsonl`.

        Raises:
            OSError: The file cannot be read or cut.
        """
        if self._writer is None:
            return 0
        for outlet in self._audience.values():
            outlet.put(_record(logging.INFO, "", cut=step))
        if self.log_dir is None:
            return 0
        self.flush()
        return cut_rows(self.log_dir / METRICS_FILE, step, evaluated=evaluated)

    def flush(self) -> None:
        """Wait until all that was said so far is on the disk.

        Neither the terminal nor a sink is waited for.

        Raises:
            OSError: Something could not be written, now or since the last flush.
        """
        if self._writer is None:
            return
        self._writer.wait()
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Write what is queued, close the files and end the threads.

        Raises:
            Exception: Something could not be written, and no flush has said so yet.
        """
        self._depth = 0
        if self._writer is None:
            return
        self._close_sinks()
        self._move_bar()
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.put(_record(logging.INFO, "", closing=True))
            screen.close(self._timeout_s)
        writer, self._writer = self._writer, None
        writer.close()
        self._close_files()

    def _close_files(self) -> None:
        files, self._files = self._files, []
        for file in files:
            file.close()
        for file in files:
            file.check_unsaid()

    def _close_sinks(self) -> None:
        for outlet in self._audience.values():
            outlet.put(_record(logging.INFO, "", closing=True))
        until_s = time.monotonic() + self._timeout_s
        for name, outlet in self._audience.items():
            if not outlet.close(max(0.0, until_s - time.monotonic())):
                self.warning(
                    f"{name} had not taken all rows after {self._timeout_s:g} s; "
                    "the run does not wait for it longer"
                )
        self._audience.clear()
        self._behind.clear()

    def _close_after(self, error: BaseException | None) -> None:
        """Close, and do not hide the error that passes behind one of the log."""
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"the log could not be written: {failure}")

    def _sink_failed(self, name: str, error: BaseException) -> None:
        """Say what a sink raised; called on its thread."""
        self._say(
            logging.WARNING,
            f"{name} failed and gets no more rows: {type(error).__name__}: {error}",
            exc_info=(type(error), error, error.__traceback__),
        )

    def _move_bar(self) -> None:
        moved, self._moved = self._moved, None
        if self._screen is not None and moved is not None:
            self._screen.put(_record(logging.INFO, "", progress=moved))

    def _say(
        self, level: int, message: str, exc_info: Any = None, **carried: Any
    ) -> None:
        if self._is_speaking():
            self._put(_record(level, message, exc_info, **carried))

    def _put(self, record: logging.LogRecord) -> None:
        """Give a record to the files and the terminal."""
        for outlet in (self._writer, self._screen):
            if outlet is not None:
                outlet.put(record)

    def _is_speaking(self) -> bool:
        """Return whether this is the process that speaks.

        Raises:
            RuntimeError: The logger is not open, on any process.
        """
        if self._writer is None and self._depth <= 0:
            raise RuntimeError(
                "this Logger is not open, so nothing would be written; "
                "use it inside `with Logger(...) as log:`"
            )
        return self._writer is not None


def _record(
    level: int, message: str, exc_info: Any = None, **carried: Any
) -> logging.LogRecord:
    record = logging.LogRecord("roxxel", level, "", 0, message, None, exc_info)
    record.__dict__.update(carried)
    return record


def _name(sink: object) -> str:
    return getattr(sink, "__qualname__", type(sink).__qualname__)
