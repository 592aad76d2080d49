"""`system.log` and `metrics.jsonl` of one folder, and the threads of a log.

Both files only grow. `roxxel_train.starts` says which rows are the result of a run that
was killed and resumed.

One `Worker` writes both files. The terminal and every sink have their own `Worker`: a
terminal that is stopped with Ctrl-S, or a sink that waits for a server, delays only its
own calls. `failure` has the first error of a write, which the next `flush` or `close`
raises.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from roxxel_curriculum.run_log import METRICS
from roxxel_store.files import make_folder
from roxxel_store.lines import LineFile, LinePosition, json_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_Result = TypeVar("_Result")

SYSTEM_LOG = "system.log"

_MAX_WAITING = 10_000


class Worker:
    """Calls functions in order on a thread, until a function raises.

    The thread calls `report` with the first error. A lossy worker drops new calls while
    10,000 calls are queued.
    """

    def __init__(
        self,
        name: str,
        report: Callable[[BaseException], object] = lambda _: None,
        *,
        is_lossy: bool = False,
    ) -> None:
        self._report = report
        self._is_lossy = is_lossy
        self._calls: queue.SimpleQueue[
            tuple[Callable[..., object], tuple[Any, ...], bool]
        ] = queue.SimpleQueue()
        # A daemon thread: a sink that never returns must not keep the program alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, function: Callable[..., object], *args: Any) -> bool:
        """Queue a call; return False if the call was dropped."""
        if self._is_lossy and self._calls.qsize() >= _MAX_WAITING:
            return False
        self._calls.put((function, args, False))
        return True

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call a function after all queued calls; return its result, or raise."""
        outcome: Future[_Result] = Future()
        self._calls.put((_settle, (outcome, function), False))
        return outcome.result()

    def finish(self, last: Callable[[], object] = lambda: None) -> None:
        """Queue a last call, which runs even after an error and ends the thread."""
        self._calls.put((last, (), True))

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end; return False if it is alive after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        has_failed = is_last = False
        while not is_last:
            function, args, is_last = self._calls.get()
            if has_failed and not is_last:
                continue
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001 - reported, not raised
                if not has_failed:
                    self._report(error)
                has_failed = True


class LateRow:
    """A metrics row; the first thread that needs the whole row computes the rest.

    `head` has the first values. `rest` returns the others, and is called once.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        rest: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.head = head
        self._rest = rest
        self._row = head
        self._lock = threading.Lock()

    def whole(self) -> Mapping[str, Any]:
        """Return all values of the row."""
        with self._lock:
            if self._rest is not None:
                self._row, self._rest = {**self.head, **self._rest()}, None
            return self._row


class LogFiles:
    """Both files of a folder.

    Calls only queue work, except `position`, `flush` and `close`, which wait.
    """

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        with ExitStack() as on_error:
            self._rows = LineFile(folder / METRICS)
            on_error.callback(self._rows.close)
            try:
                self._rows.lock()
            except BlockingIOError as error:
                raise BlockingIOError(
                    f"{folder / METRICS}: another Logger is open in this folder; "
                    "use that Logger (Trainer(logger=...)) or give another folder"
                ) from error
            self._text = LineFile(folder / SYSTEM_LOG)
            on_error.callback(self._text.close)
            for file in (self._rows, self._text):
                file.begin()
            on_error.pop_all()
        self._worker = Worker("roxxel-log")

    def text(self, level: str, message: str, stack: str) -> None:
        """Append to `system.log`."""
        self._worker.put(self._text.write, _text_line, level, message, stack)

    def row(self, row: LateRow) -> None:
        """Append to `metrics.jsonl`."""
        self._worker.put(self._rows.write, _json_line, row)

    def lines(self, lines: Sequence[str]) -> None:
        """Append whole lines to `metrics.jsonl`."""
        self._worker.put(self._rows.write_lines, lines)

    @property
    def failure(self) -> Exception | None:
        """The error of the first failed write."""
        return self._rows.failure or self._text.failure

    def position(self) -> LinePosition:
        """Flush both files; return where `metrics.jsonl` ends."""

        def flush() -> LinePosition:
            self._text.try_to_sync()
            self._rows.try_to_sync()
            return self._rows.position()

        return self._worker.call(flush)

    def flush(self) -> None:
        """Write queued lines and flush both files; raise the error of a write."""
        self._worker.call(self._text.sync)
        self._worker.call(self._rows.sync)

    def close(self) -> None:
        """Write queued lines, close both files; raise errors not yet raised."""
        self._worker.finish()
        self._worker.join()
        with ExitStack() as stack:
            stack.callback(self._rows.close)
            stack.callback(self._text.close)


def _settle(outcome: Future[_Result], function: Callable[[], _Result]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        outcome.set_exception(error)


def _text_line(level: str, message: str, traceback: str = "") -> str:
    """Return a line of `system.log`: UTC time, level, message, then a traceback."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{now} {level} {message}\n{traceback}"


def _json_line(row: LateRow) -> str:
    return json_line(row.whole())
