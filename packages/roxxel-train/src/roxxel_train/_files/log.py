"""`system.log` and `metrics.jsonl` of one folder, and the threads of a log.

Both files only grow. `roxxel_train.starts` says which rows are the result of a run that
was killed and resumed.

One `Worker` writes both files. The terminal and every sink have a `Worker` of their
own: a terminal that is stopped with Ctrl-S, or a sink that waits for a server, delays
only its own calls. A line that cannot be written waits for the next write. `failure`
has the first error, which the next `flush` or `close` raises.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import zlib
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from roxxel_store.files import make_folder
from roxxel_store.locks import try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_Result = TypeVar("_Result")

METRICS = "metrics.jsonl"
SYSTEM_LOG = "system.log"

_MAX_WAITING = 10_000
_TAIL_BYTES = 1 << 20


class LogPosition(NamedTuple):
    """Where `metrics.jsonl` ends: what a checkpoint keeps, and the next start follows.

    Attributes:
        after: CRC-32 of the last line that is on the disk for certain; 0 without one.
        at: Bytes of the file up to the end of this line, by which it is told from an
            equal one.
        unwritten: The lines after it that may not be on the disk, because a write has
            failed; usually none.
    """

    after: int
    at: int = 0
    unwritten: Sequence[str] = ()


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
    """A metrics row, of which the first thread that needs it computes the rest.

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
    """Both files of a folder. Calls queue work; `position`, `flush`, `close` wait."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        with ExitStack() as on_error:
            self._rows = _LogFile(folder / METRICS, _json_line)
            on_error.callback(self._rows.close)
            self._rows.lock()
            self._text = _LogFile(folder / SYSTEM_LOG, _text_line)
            on_error.callback(self._text.close)
            for file in (self._rows, self._text):
                file.begin()
            on_error.pop_all()
        self._worker = Worker("roxxel-log")

    def text(self, level: str, message: str, stack: str) -> None:
        """Append to `system.log`."""
        self._worker.put(self._text.write, level, message, stack)

    def row(self, row: LateRow) -> None:
        """Append to `metrics.jsonl`."""
        self._worker.put(self._rows.write, row)

    def lines(self, lines: Sequence[str]) -> None:
        """Append whole lines to `metrics.jsonl`."""
        self._worker.put(self._rows.write_lines, lines)

    @property
    def failure(self) -> Exception | None:
        """The error of the first failed write."""
        return self._rows.failure or self._text.failure

    def position(self) -> LogPosition:
        """Flush both files; return where `metrics.jsonl` ends."""

        def flush() -> LogPosition:
            self._text.try_to_sync()
            self._rows.try_to_sync()
            return self._rows.position()

        return self._worker.call(flush)

    def flush(self) -> None:
        """Write queued lines and flush both files; raise the error of a write."""
        self._worker.call(self._text.sync)
        self._worker.call(self._rows.sync)

    def close(self) -> None:
        """Write queued lines, close both files; raise errors that `flush` did not."""
        self._worker.finish()
        self._worker.join()
        with ExitStack() as stack:
            stack.callback(self._rows.close)
            stack.callback(self._text.close)


def append_once(folder: Path, level: str, message: str) -> None:
    """Append a line to the existing `system.log` of a folder, unless it has the line.

    The process that writes the file may be stopped, and continue later.
    """
    path = folder / SYSTEM_LOG
    if not path.is_file():
        return
    tail, _ = next(_tails(path))
    if message.encode() not in tail:
        torn = "" if tail.endswith(b"\n") else "\n"
        with path.open("ab", buffering=0) as file:
            file.write((torn + _text_line(level, message)).encode())
            os.fsync(file.fileno())


def plain_row(row: Mapping[Any, Any], *, for_json: bool = False) -> dict[str, Any]:
    """Copy a metrics row into Python's own types: arrays to lists, keys to text.

    With `for_json`, NaN and infinities become text, because JSON has no such numbers.

    Raises:
        ValueError: Two keys have the same text.
    """
    return cast("dict[str, Any]", _plain(dict(row), for_json=for_json))


def _settle(outcome: Future[_Result], function: Callable[[], _Result]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        outcome.set_exception(error)


class _LogFile:
    """Appends lines to one file; `format_line` turns the arguments into a line.

    `failure` is the error of the first failed write. The lines that could not be
    written are tried again at the next write.
    """

    def __init__(self, path: Path, format_line: Callable[..., str]) -> None:
        self._format_line = format_line
        # Without a buffer every line is in the kernel at once, since the process may be
        # killed at any time, and a failed write shows how much of a line it wrote.
        self._path = path
        self._file = path.open("ab", buffering=0)
        self.failure: Exception | None = None
        self._is_failure_raised = False
        self._is_synced = True
        self._has_lost_lines = False
        self._synced_bytes = 0
        self._synced_crc = self._crc = 0  # CRC-32 of the last whole line
        self._waiting: deque[bytes] = deque()
        self._num_written = 0  # bytes of the first waiting line

    def lock(self) -> None:
        """Lock the file; raise BlockingIOError if another `Logger` has locked it."""
        # On a file system without locks, a second writer is not detected.
        if try_lock(self._file.fileno()) is False:
            raise BlockingIOError(
                f"{self._file.name}: another Logger is open in this folder; "
                "use that Logger (Trainer(logger=...)) or give another folder"
            )

    def begin(self) -> None:
        """Go on after the lines of the file; a killed process may have torn the last.

        A torn line stays, as a line that readers leave out.
        """
        last = _last_line(self._path)
        if last and not last.endswith(b"\n"):
            self.write_lines(["\n"])
            last += b"\n"
        self._crc = zlib.crc32(last)
        self._note_sync()

    def write(self, *values: Any) -> None:
        """Append one line; `sync` and `close` raise the error of a failed write."""
        try:
            line = self._format_line(*values)
        except Exception as error:  # noqa: BLE001 - raised by sync() and close()
            self.failure = self.failure or error
            return
        self.write_lines([line])

    def write_lines(self, lines: Sequence[str]) -> None:
        """Append lines that end with a newline; errors as in `write`."""
        # Escape lone surrogates in a text: an encoding error must not end the run.
        self._waiting += [line.encode("utf-8", "backslashreplace") for line in lines]
        try:
            while self._waiting:
                line = self._waiting[0]
                self._num_written += self._file.write(line[self._num_written :]) or 0
                self._is_synced = False
                if self._num_written == len(line):
                    self._waiting.popleft()
                    self._num_written, self._crc = 0, zlib.crc32(line)
        except OSError as error:
            self._fail(error)

    def _note_sync(self) -> None:
        """Record that the whole lines so far are on the disk."""
        self._synced_crc = self._crc
        with suppress(OSError):  # a pipe has no size
            self._synced_bytes = self._path.stat().st_size - self._num_written

    def sync(self) -> None:
        """Flush the lines to the disk; raise the error of the first failed write."""
        self.try_to_sync()
        if self.failure is not None:
            self._is_failure_raised = True
            raise self.failure

    def try_to_sync(self) -> None:
        """Flush the lines to the disk; an error is in `failure` afterwards."""
        if not self._is_synced and not self._has_lost_lines:
            try:
                os.fsync(self._file.fileno())
                self._is_synced = True
                self._note_sync()
            except OSError as error:
                # The system may have dropped the lines since the last success, and
                # would report success the next time.
                self._has_lost_lines = True
                self._fail(error)

    def position(self) -> LogPosition:
        """Return the last line that a successful `sync` wrote, and the lines since."""
        if self.failure is None:
            return LogPosition(self._synced_crc, self._synced_bytes)
        content = b""
        with suppress(OSError):
            if self._path.is_file():
                with self._path.open("rb") as file:
                    file.seek(self._synced_bytes)
                    content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = [*whole.splitlines(keepends=True), *self._waiting]
        return LogPosition(
            self._synced_crc,
            self._synced_bytes,
            [line.decode("utf-8", "backslashreplace") for line in lines],
        )

    def _fail(self, error: OSError) -> None:
        named = OSError(error.errno, error.strerror, str(self._path))
        self.failure = self.failure or named

    def close(self) -> None:
        """Close the file; raise the first write error, unless `sync` has raised it."""
        if not self._file.closed:
            unlock(self._file.fileno())
        try:
            self._file.close()
        except OSError as error:
            self._fail(error)
        if self.failure is not None and not self._is_failure_raised:
            raise self.failure


def _text_line(level: str, message: str, traceback: str = "") -> str:
    """Return a line of `system.log`: UTC time, level, message, then the traceback."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{now} {level} {message}\n{traceback}"


def _json_line(row: LateRow) -> str:
    """Return a row as one line of JSON; NaN and infinities become text."""
    return json.dumps(plain_row(row.whole(), for_json=True), allow_nan=False) + "\n"


def _last_line(path: Path) -> bytes:
    """Return the last line of a file, whole or torn; empty for a pipe or a device."""
    for tail, is_whole in _tails(path) if path.is_file() else ():
        before, newline, _ = tail[:-1].rpartition(b"\n")
        if newline or is_whole:
            return tail[len(before) + len(newline) :]
    return b""


def _tails(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield the end of a file, each time four times as much, until it is whole."""
    with path.open("rb") as file:
        size, num_bytes = file.seek(0, os.SEEK_END), _TAIL_BYTES
        while True:
            file.seek(max(0, size - num_bytes))
            yield file.read(), num_bytes >= size
            if num_bytes >= size:
                return
            num_bytes *= 4


def _plain(value: Any, *, for_json: bool = False) -> Any:
    """Return a value in Python's own types; see `plain_row`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        named = {str(k): _plain(x, for_json=for_json) for k, x in items.items()}
        if len(named) < len(items):
            raise ValueError(
                f"keys of a row have the same text: {list(items)}; rename one of them"
            )
        return named
    if isinstance(value, list | tuple):
        return [_plain(x, for_json=for_json) for x in cast("list[Any]", value)]
    if for_json and isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
