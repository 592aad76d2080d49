"""The log of a run: `system.log`, `metrics.jsonl`, the terminal and the sinks.

A method of the logger only queues work. Worker threads write the files, draw the
terminal and call the sinks, and do not wait for each other. Only process 0 writes.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import jax
from roxxel_ckpt.values import STATE_DIGEST
from roxxel_curriculum.run_log import END, KINDS, SAVE, head, linked
from roxxel_store.errors import is_ours
from roxxel_store.lines import plain_row
from roxxel_store.screen import shown

from roxxel_train._files.folder import check_writable
from roxxel_train._files.log import LateRow, LogFiles, Worker
from roxxel_train._log.terminal import Terminal

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from roxxel_store.lines import LinePosition


class Logger:
    """Writes the text and the metrics of a run without delaying its loop.

    A logger is a context manager. At the end of the block, all queued lines and rows
    are written. An exception that leaves the block is written to `system.log`. It has
    its traceback, unless it is an error of Roxxel, whose sentence is enough.

    Args:
        log_dir: Folder for `system.log` and `metrics.jsonl`, created if missing. None
            writes no files. Only one `Logger` at a time may be open in a folder.
        sinks: Functions that are called with every metrics row. Each sink runs on its
            own thread and gets its own copy of the row, a dict of plain Python values.
            If a sink raises, the run continues, `system.log` has the traceback, and the
            sink gets no more rows until the logger is opened again. A slow sink delays
            nothing else: if 10,000 rows are queued for it, further rows are dropped. A
            row whose `"kind"` is `"start"` says that a run starts or resumes at
            `"step"`. All rows after this step follow, perhaps for the second time. A
            sink may have a method `close()`, which is called when the logger closes.
        terminal: Also show text and rows on standard error: a progress bar on a
            terminal or in a notebook, plain lines elsewhere.
        timeout_s: Longest wait of `close` for the terminal and for the sinks. `close`
            waits for the files without a limit.

    Raises:
        TypeError: An item of `sinks` is not callable.

    Example:
        >>> rows = []
        >>> with Logger("run", [rows.append], terminal=False) as log:
        ...     log.info("begins")
        ...     log.metrics({"kind": "train", "step": 1, "loss": 0.5})
        >>> rows[0]["loss"]
        0.5
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        sinks: Sequence[Callable[[dict[str, Any]], object]] = (),
        *,
        terminal: bool = True,
        timeout_s: float = 10.0,
    ) -> None:
        self._given_sinks = tuple(sinks)
        for sink in self._given_sinks:
            if not callable(sink):
                raise TypeError(
                    f"sinks holds a {type(sink).__name__}, which cannot be called; "
                    "give functions, or objects with __call__, that accept a row"
                )
        self.log_dir: Path | None = None
        if log_dir is not None:
            self.log_dir = check_writable(log_dir, "log_dir")
        self._has_terminal = terminal
        self._timeout_s = timeout_s
        self._depth = 0
        self._is_open = False
        self._files: LogFiles | None = None
        self._screen: Terminal | None = None
        self._sinks: list[_Sink] = []

    def __enter__(self) -> Self:
        """Open the files and start the threads, on process 0 only.

        Entering an open logger changes nothing, so a trainer accepts an open logger.

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
        """Write the exception that leaves the block, then close the logger."""
        try:
            # SystemExit is not a fault. Python itself prints tracebacks.
            if error is not None and not isinstance(error, SystemExit):
                line = "the run ended with an error"
                fault = None if is_ours(error) else error
                if fault is None:
                    sentence = " ".join(str(error).split())
                    line = f"{line}: {type(error).__name__}: {sentence}"
                self._say("ERROR", line, fault, terminal=False)
        finally:
            self._depth -= 1
            if self._depth <= 0:
                try:
                    self.close()
                except Exception as failure:
                    if error is None:
                        raise
                    error.add_note(f"the log could not be written: {failure}")

    def info(self, message: str, *, terminal: bool = True) -> None:
        """Write one line of text at level INFO.

        Args:
            message: The text.
            terminal: Also show the text on the terminal.
        """
        self._say("INFO", message, terminal=terminal)

    def warning(self, message: str, *, terminal: bool = True) -> None:
        """Write one line of text at level WARNING.

        Args:
            message: The text.
            terminal: Also show the text on the terminal.
        """
        self._say("WARNING", message, terminal=terminal)

    def sink_problems(self) -> list[str]:
        """Try each sink that has a method `check`; return why sinks would fail."""
        problems: list[str] = []
        for sink in self._given_sinks:
            try:
                getattr(sink, "check", lambda: None)()
            except Exception as error:  # noqa: BLE001 - any error is the sink's problem
                problems.append(f"the sink {type(sink).__name__}: {error}")
        return problems

    def status(self, message: str) -> None:
        """Write a line about work between steps, such as compiling, to `system.log`.

        The terminal shows the text beside the progress bar until the next step, or as a
        line if there is no bar.
        """
        self._say("INFO", message, terminal=False)
        if self._screen is not None:
            self._screen.status(message)

    def metrics(
        self,
        row: Mapping[str, Any],
        rest: Callable[[], Mapping[str, Any]] | None = None,
        *,
        terminal: bool = True,
    ) -> None:
        """Write one row of metrics.

        Args:
            row: Values by name. A value is a JSON value, or a scalar or array of NumPy
                or JAX. Keys become text. NaN and infinities are written as text, since
                JSON has no such numbers. If the row cannot be written, `flush` and
                `close` raise the error.
            rest: Returns the values that follow those of `row`. A thread of the logger
                calls this function, so that values which take long to compute, or to
                copy from a device, do not delay your loop. It is not called if the row
                goes nowhere, as on processes other than 0.
            terminal: Also show the row on the terminal.

        Raises:
            ValueError: Only a trainer may write a row of this kind.
        """
        late = None if rest is None else lambda: _of_user(rest())
        self._row(_of_user(row), late, terminal=terminal)

    def start(self, row: Mapping[str, Any], past: LinePosition | None) -> None:
        """Write the row of a start, and the lines that its checkpoint has kept.

        Args:
            row: The fields of the start.
            past: Where the log ended when the checkpoint was saved; None for a new run.
        """
        self._row(linked(row, past), terminal=False)
        if past is not None and past.unwritten and self._files is not None:
            self._files.lines(past.unwritten)

    def save(self, step: int, digest: str) -> None:
        """Write the row of a save, with the state's digest, only into the file."""
        row = {**head(SAVE, step), STATE_DIGEST: digest}
        if self._files is not None:
            self._files.row(LateRow(row))

    def end(self, row: Mapping[str, Any]) -> None:
        """Write the row of an ending."""
        self._row({"kind": END, **row}, terminal=False)

    def _row(
        self,
        row: Mapping[str, Any],
        rest: Callable[[], Mapping[str, Any]] | None = None,
        *,
        terminal: bool,
    ) -> None:
        if not self._is_writing():
            return
        late = LateRow(row, rest)
        if self._files is not None:
            self._files.row(late)
        if terminal and self._screen is not None:
            self._screen.row(late)
        for sink in self._sinks:
            if not sink.put_row(late) and not sink.is_behind:
                sink.is_behind = True
                self.warning(f"{sink.name} is too slow; the logger drops rows for it")

    def progress(self, step: int, total_steps: int, loss: float | None = None) -> None:
        """Move the progress bar; without a bar, show a line about once a minute.

        Call this method at every step, before the metrics row of the step. Another
        thread draws the bar, at most ten times a second, with the loss and the values
        of the last training row beside it. Without a bar, a line shows the step and the
        loss, unless a row was shown within a minute.

        Args:
            step: Updates done.
            total_steps: Updates in the whole run.
            loss: Loss of the step.
        """
        if self._screen is not None:
            self._screen.progress(step, total_steps, loss)

    @property
    def failure(self) -> Exception | None:
        """The error of the first line that could not be written, or None.

        The logger keeps such lines and tries to write them again.
        """
        return None if self._files is None else self._files.failure

    def position(self) -> LinePosition | None:
        """Flush the files; return where `metrics.jsonl` ends, for a checkpoint.

        The result has the lines that a failed write has left out; this method does not
        raise the `failure`. None if the logger writes no files.
        """
        return None if self._files is None else self._files.position()

    def flush(self) -> None:
        """Flush the files to the disk, without waiting for the terminal or a sink.

        Raises:
            OSError: A line could not be written, now or since the last flush.
        """
        if self._files is not None:
            self._files.flush()

    def close(self) -> None:
        """Write all queued lines and rows, close the files and end the threads.

        Raises:
            Exception: A line could not be written, and no `flush` has raised the error
                yet.
        """
        self._depth = 0
        self._close_sinks()  # first: a warning about a slow sink is still written
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.close(self._timeout_s)
        files, self._files = self._files, None
        self._is_open = False  # even if a line cannot be written
        if files is not None:
            files.close()

    def _open(self) -> None:
        if self.log_dir is not None:
            self._files = LogFiles(self.log_dir)
        # A program without a console has no standard error.
        if self._has_terminal and sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - typeshed omits None
            self._screen = Terminal(sys.stderr)
        self._sinks = [
            _Sink(index, sink, self._sink_failed)
            for index, sink in enumerate(self._given_sinks)
        ]
        self._is_open = True

    def _close_sinks(self) -> None:
        for sink in self._sinks:
            sink.worker.finish(sink.close)
        until_s = time.monotonic() + self._timeout_s
        for sink in self._sinks:
            if not sink.worker.join(max(0.0, until_s - time.monotonic())):
                self.warning(
                    f"{sink.name} did not accept all rows within "
                    f"{self._timeout_s:g} s; the logger no longer waits for this sink"
                )
        self._sinks = []

    def _sink_failed(self, name: str, error: BaseException) -> None:
        """Log the error of a sink; called on the thread of the sink."""
        if self._is_open:
            failure = f"{type(error).__name__}: {error}"
            text = f"{name} failed and gets no more rows: {failure}"
            self._say("WARNING", text, error)

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
            self._files.text(level, shown(message), shown(stack))
        if terminal and self._screen is not None:
            self._screen.line(message)

    def _is_writing(self) -> bool:
        """Return whether this process writes; raise an error outside of `with`."""
        if not self._is_open and self._depth <= 0:
            raise RuntimeError(
                "this Logger is not open, so nothing would be written; "
                "use it inside `with Logger(...) as log:`"
            )
        return self._is_open  # False on all processes but the first


class _Sink:
    """Calls a user's sink on its own thread, until the sink raises an error.

    The thread calls `report` with the name and the first error of the sink. `is_behind`
    is True if a row was dropped because too many rows were queued.
    """

    def __init__(
        self,
        index: int,
        sink: Callable[[dict[str, Any]], object],
        report: Callable[[str, BaseException], None],
    ) -> None:
        kind = getattr(sink, "__qualname__", type(sink).__qualname__)
        self.name = f"sink {index} ({kind})"
        self.is_behind = False
        self._sink = sink
        self.worker = Worker(
            f"roxxel-sink-{index}", partial(report, self.name), is_lossy=True
        )

    def put_row(self, row: LateRow) -> bool:
        """Queue a row; return False if the row was dropped."""
        return self.worker.put(lambda: self._sink(plain_row(row.whole())))

    def close(self) -> None:
        """Close the sink, if it has a method for it."""
        getattr(self._sink, "close", lambda: None)()


@contextmanager
def collected_warnings(package: str) -> Generator[list[str]]:
    """Collect the warnings of a package's `logging` logger, which still shows them."""
    messages: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(record.getMessage())
        return True

    # A handler would keep `logging` from printing the warnings; a filter does not.
    logger = logging.getLogger(package)
    logger.addFilter(collect)
    try:
        yield messages
    finally:
        logger.removeFilter(collect)


class WarningForwarder(logging.Handler):
    """A context that writes the warnings of a package's `logging` logger to `log`."""

    def __init__(self, package: str, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger(package)
        self._log = log
        self._is_shown = False

    def __enter__(self) -> Self:
        # Once a logger has a handler, `logging` no longer prints its warnings.
        self._is_shown = self._logger.hasHandlers()
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning; show it on the terminal unless another handler does."""
        try:
            self._log.warning(self.format(record), terminal=not self._is_shown)
        except Exception:  # noqa: BLE001 - logging must not end the code that logs
            self.handleError(record)


def _of_user(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row; raise an error if only a trainer may write its kind."""
    if row.get("kind") in KINDS:
        raise ValueError(
            f"a row of the kind {row['kind']!r} says how a run goes on, which only its "
            "trainer knows; give your rows another kind"
        )
    return dict(row)
