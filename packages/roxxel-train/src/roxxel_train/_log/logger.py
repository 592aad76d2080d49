"""The log of a run: `system.log`, `metrics.jsonl`, the terminal and the sinks.

A call to the logger only queues work. Worker threads write the files, draw the terminal
and call the sinks, and none of them waits for another. Only process 0 writes.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import jax

from roxxel_train._log.files import METRICS_FILE, LogFiles
from roxxel_train._log.sink import SinkRunner
from roxxel_train._log.terminal import Terminal
from roxxel_train._log.worker import Worker
from roxxel_train._paths import check_writable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

_REDRAW_S = 0.1
"""Least time between two moves of the progress bar."""


class _Screen(NamedTuple):
    terminal: Terminal
    worker: Worker


class Logger:
    """Writes the text and the metrics of a run without delaying its loop.

    Use it as a context manager. Leaving the block writes everything that is queued. An
    exception that leaves the block is written to `system.log` with its traceback.

    Args:
        log_dir: Folder for `system.log` and `metrics.jsonl`, created when missing; None
            writes no files. Only one `Logger` at a time may be open in a folder.
        sinks: Further consumers of rows. Each is called with every row, a dict of plain
            Python values of its own, on a thread of its own. A sink that raises is
            named in `system.log`, with its traceback, and gets no more rows until the
            logger is opened again; the run continues. A slow sink delays nothing else:
            when 10,000 rows are waiting for it, further rows are dropped. A sink may
            have the methods `cut(step)`, called when a run starts or resumes at `step`,
            so that the rows after `step` are written (again), and `close()`, called
            when no more rows follow until the logger is opened again.
        terminal: Show text and rows on standard error too: a progress bar on a terminal
            or in a notebook, plain lines elsewhere.
        timeout_s: How long closing waits for the terminal and for the sinks. Closing
            waits for the files without a limit.

    Raises:
        TypeError: An item of `sinks` is not callable.
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
            raise TypeError("sinks is one function; give a list of functions")
        self._given_sinks = tuple(sinks)
        for sink in self._given_sinks:
            if not callable(sink):
                raise TypeError(
                    f"sinks holds a {type(sink).__name__}, which cannot be called; "
                    "give functions, or objects with __call__, that accept a row"
                )
        if log_dir is not None:
            check_writable(log_dir, "log_dir")
        self.log_dir: Path | None = None if log_dir is None else Path(log_dir)
        self._has_terminal = terminal
        self._timeout_s = timeout_s
        self._depth = 0
        self._is_open = False
        self._files: LogFiles | None = None
        self._screen: _Screen | None = None
        self._sinks: list[SinkRunner] = []
        self._progress: tuple[int, int, Mapping[str, str]] | None = None
        self._redraw_at_s = 0.0

    def __enter__(self) -> Self:
        """Open the files and start the threads, on process 0 only.

        Entering again inside the block changes nothing, so a trainer accepts a logger
        that is already open.

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
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        """Write the exception that leaves the block, then everything that is queued."""
        try:
            # SystemExit is a decision to stop and not a fault. The terminal gets the
            # traceback from the interpreter.
            if error is not None and not isinstance(error, SystemExit):
                self._say("ERROR", "the run ended with an error", error, terminal=False)
        finally:
            self._depth -= 1
            if self._depth <= 0:
                self._close_after(error)

    def info(self, message: str, *, terminal: bool = True) -> None:
        """Write one line of text.

        Args:
            message: The text.
            terminal: Show the text on the terminal too.
        """
        self._say("INFO", message, terminal=terminal)

    def warning(self, message: str, *, terminal: bool = True) -> None:
        """Write one line of text that needs attention.

        Args:
            message: The text.
            terminal: Show the text on the terminal too.
        """
        self._say("WARNING", message, terminal=terminal)

    def status(self, message: str) -> None:
        """Write what the run does while no step is made, such as compiling.

        The text is shown beside the progress bar until the next step; without a bar it
        is a line. `system.log` has it as a line.
        """
        self._say("INFO", message, terminal=False)
        if self._screen is not None:
            self._screen.worker.put(self._screen.terminal.status, message)

    def metrics(self, row: Mapping[str, Any]) -> None:
        """Write one row of metrics.

        Args:
            row: Names and values that JSON can hold, or scalars and arrays of NumPy and
                JAX; other keys than text become text. NaN and infinities are written as
                text, since JSON has no numbers for them. `flush` and `close` raise the
                error of a row that could not be written.
        """
        if not self._is_writing():
            return
        row = dict(row)
        if self._files is not None:
            self._files.row(row)
        if self._screen is not None:
            self._screen.worker.put(self._screen.terminal.row, row)
        for sink in self._sinks:
            was_behind = sink.is_behind
            sink.row(row)
            if sink.is_behind and not was_behind:
                self.warning(f"{sink.name} is far behind; it misses rows from here on")

    def progress(self, step: int, total_steps: int, shown: Mapping[str, str]) -> None:
        """Move the progress bar; without a bar nothing is shown.

        Cheap enough for every step: another thread draws the bar, at most ten times a
        second.

        Args:
            step: Updates done.
            total_steps: Updates in the whole run.
            shown: Short texts beside the bar, by name; must not be changed afterwards.
        """
        if self._screen is None:
            return
        self._progress = (step, total_steps, shown)
        now = time.monotonic()
        if now >= self._redraw_at_s:
            self._redraw_at_s = now + _REDRAW_S
            self._draw_progress()

    def cut_metrics(self, step: int, *, evaluated: bool = True) -> int:
        """Drop the rows of updates after `step`, and announce it to the sinks.

        A run that resumes from an earlier checkpoint writes those rows again.

        Args:
            step: Updates done.
            evaluated: Keep the evaluation after them; otherwise it is made again.

        Returns:
            Number of rows dropped from `metrics.jsonl`.

        Raises:
            OSError: The file cannot be read or truncated.
        """
        for sink in self._sinks:
            sink.cut(step)
        if self._files is None:
            return 0
        return self._files.cut(step, evaluated=evaluated)

    def flush(self) -> None:
        """Flush the files to the disk; wait neither for the terminal nor for a sink.

        Raises:
            OSError: A line could not be written, now or since the last flush.
        """
        if self._files is not None:
            self._files.flush()

    def close(self) -> None:
        """Write everything that is queued, close the files and end the threads.

        Raises:
            Exception: A line could not be written, and no flush has raised it yet.
        """
        self._depth = 0
        self._close_sinks()
        self._draw_progress()
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.worker.put(screen.terminal.close)
            screen.worker.close(self._timeout_s)
        files, self._files = self._files, None
        self._is_open = False
        if files is not None:
            files.close()

    def _open(self) -> None:
        if self.log_dir is not None:
            self._files = LogFiles(self.log_dir)
        # A program without a console has no standard error.
        if self._has_terminal and sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - typeshed omits None
            worker = Worker("roxxel-terminal", is_lossy=True)
            self._screen = _Screen(Terminal(sys.stderr), worker)
        self._sinks = [
            SinkRunner(index, sink, self._sink_failed)
            for index, sink in enumerate(self._given_sinks)
        ]
        self._is_open = True
        if self._files is not None and self._files.was_torn:
            self.warning(f"{METRICS_FILE} ended with half a row, which was dropped")

    def _close_sinks(self) -> None:
        for sink in self._sinks:
            sink.request_close()
        until_s = time.monotonic() + self._timeout_s
        for sink in self._sinks:
            if not sink.join(max(0.0, until_s - time.monotonic())):
                self.warning(
                    f"{sink.name} did not accept all rows within "
                    f"{self._timeout_s:g} s; the run no longer waits for it"
                )
        self._sinks = []

    def _close_after(self, error: BaseException | None) -> None:
        """Close; if the block raised `error`, add the failure of the log to it."""
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"the log could not be written: {failure}")

    def _sink_failed(self, name: str, error: BaseException) -> None:
        """Log the error of a sink; called on the thread of the sink."""
        if self._is_open:
            failure = f"{type(error).__name__}: {error}"
            text = f"{name} failed and gets no more rows: {failure}"
            self._say("WARNING", text, error)

    def _draw_progress(self) -> None:
        progress, self._progress = self._progress, None
        if self._screen is not None and progress is not None:
            self._screen.worker.put(self._screen.terminal.progress, *progress)

    def _say(
        self,
        level: str,
        message: str,
        error: BaseException | None = None,
        *,
        terminal: bool = True,
    ) -> None:
        if not self._is_writing():
            return
        if self._files is not None:
            stack = "" if error is None else "".join(traceback.format_exception(error))
            self._files.text(level, message, stack)
        if terminal and self._screen is not None:
            self._screen.worker.put(self._screen.terminal.line, message)

    def _is_writing(self) -> bool:
        """Return whether this process writes the log.

        Raises:
            RuntimeError: The logger is not open, on any process.
        """
        if not self._is_open and self._depth <= 0:
            raise RuntimeError(
                "this Logger is not open, so nothing would be written; "
                "use it inside `with Logger(...) as log:`"
            )
        return self._is_open
