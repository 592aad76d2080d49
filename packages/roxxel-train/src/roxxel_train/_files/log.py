"""`system.log` and `metrics.jsonl` of one folder, and the threads of a log.

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

from roxxel_store.locks import try_lock, unlock
from roxxel_store.records import find_object

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

_Result = TypeVar("_Result")

METRICS, ASIDE = "metrics.jsonl", "metrics.aside.jsonl"
SYSTEM_LOG = "system.log"

_MAX_WAITING = 10_000
_TAIL_BYTES = 1 << 20


class LastRow(NamedTuple):
    """The last metrics row: its step, and which of all rows with this step it is.

    Attributes:
        step: Updates done; 0 without a row that has a step.
        crc: CRC-32 of the line. Rows of two branches of a run have the same steps, but
            not the same times.
    """

    step: int = 0
    crc: int = 0


class _Kept(NamedTuple):
    """Rows that were cut off at once, and the CRC-32 of the row before them."""

    after: int
    lines: list[bytes]


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
    """Both files of a folder. Calls queue work; only `cut`, `flush` and `close` wait.

    `was_torn` is True if the last metrics row was incomplete and was dropped.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._rows_path = folder / METRICS
        self._aside_path = folder / ASIDE
        with ExitStack() as on_error:
            self._rows = _LogFile(self._rows_path, _json_line)
            on_error.callback(self._rows.close)
            self._rows.lock()
            self._text = _LogFile(folder / SYSTEM_LOG, _text_line)
            on_error.callback(self._text.close)
            if _torn_bytes(folder / SYSTEM_LOG):
                self._text.end_line()
            torn = _torn_bytes(self._rows_path)
            self.was_torn = torn > 0
            if torn:
                _cut(self._rows_path, self._rows_path.stat().st_size - torn)
            self._rows.begin_sync()
            self._last_row = _last_row(self._rows_path)
            on_error.pop_all()
        self._worker = Worker("roxxel-log")

    def text(self, level: str, message: str, stack: str) -> None:
        """Append to `system.log`."""
        self._worker.put(self._text.write, level, message, stack)

    def row(self, row: LateRow) -> None:
        """Append to `metrics.jsonl`."""
        self._worker.put(self._write_row, row)

    def cut(
        self, step: int, *, evaluated: bool, keep_to: Collection[int] | None
    ) -> tuple[int, int]:
        """Drop the metrics rows after `step`; return how many were kept and lost.

        Steps never decrease from row to row, and an evaluation is the last row of its
        step, so the remaining rows are a prefix of the file. If `evaluated`, the
        evaluation of `step` remains. For `keep_to`, see `Logger.cut_metrics`.
        """

        def cut() -> tuple[int, int]:
            before, lines = _rows_after(self._rows_path, (step, evaluated))
            ends = [
                end
                for end, line in enumerate(lines, 1)
                if keep_to is None or zlib.crc32(line) in keep_to
            ]
            end = max(ends, default=0)
            self._truncate(before, lines, end)
            return end, len(lines) - end

        return self._worker.call(cut)

    def last_row(self) -> LastRow:
        """Return the last metrics row that has a step, written or not."""
        return self._worker.call(lambda: self._last_row)

    def newest_time(self) -> str | None:
        """Return the time of the last row; None without a row that has one."""

        def newest() -> str | None:
            rows = (
                find_object(line) or {} for line in reversed(_tail(self._rows_path))
            )
            return next((str(row["time"]) for row in rows if "time" in row), None)

        return self._worker.call(newest)

    def bring_back(self, last: LastRow) -> tuple[int, int]:
        """Let the file end with the row `last`, from the rows that `cut` has kept.

        A run that a program replaced, and that continues, needs its own rows: those of
        the program that replaced it have the same steps. They are kept in their turn.

        Returns:
            The number of dropped rows, and of appended rows. Both are 0 if no rows that
            are kept lead to `last`.
        """

        def change() -> tuple[int, int]:
            if self._last_row.crc == last.crc:
                return 0, 0
            lines = _lines(self._rows_path)
            held = {zlib.crc32(line): number for number, line in enumerate(lines, 1)}
            way = _way_to(last.crc, held, _kept(self._aside_path))
            if way is None:
                return 0, 0
            number, added = way
            while not added and number < len(lines):
                if _position(lines[number])[0] > last.step:
                    break
                number += 1  # rows of the same step, which a program added itself
            dropped = lines[number:]
            self._truncate(lines[number - 1] if number else b"", dropped, len(dropped))
            self._rows.write_lines(
                [line.decode("utf-8", "backslashreplace") for line in added]
            )
            self._last_row = _last_row(self._rows_path)
            return len(dropped), len(added)

        return self._worker.call(change)

    def _truncate(self, before: bytes, lines: Sequence[bytes], end: int) -> None:
        """Cut off the last lines of the file, which follow the line `before`.

        The first `end` of them are kept in `metrics.aside.jsonl`.
        """
        if lines:
            _keep(self._aside_path, zlib.crc32(before), lines[:end])
            size = self._rows_path.stat().st_size
            _cut(self._rows_path, size - sum(map(len, lines)))
        self._last_row = _last_row(self._rows_path)
        self._rows.begin_sync()

    @property
    def failure(self) -> Exception | None:
        """The error of the first failed write."""
        return self._rows.failure or self._text.failure

    def unwritten_rows(self) -> list[str]:
        """Flush both files; return the metrics rows that may not be on the disk."""

        def flush() -> list[str]:
            self._text.try_to_sync()
            self._rows.try_to_sync()
            return self._rows.unsynced()

        return self._worker.call(flush)

    def add_rows(self, lines: Sequence[str]) -> int:
        """Append those lines that `metrics.jsonl` lacks; return how many.

        `lines` are the result of `unwritten_rows`: the file ends before the first of
        them or with one of them.
        """

        def add() -> int:
            end = _tail(self._rows_path)[-1:]
            encoded = [line.encode("utf-8", "backslashreplace") for line in lines]
            found = [number for number, line in enumerate(encoded) if [line] == end]
            missing = lines[found[-1] + 1 if found else 0 :]
            self._rows.write_lines(missing)
            self._last_row = _last_row(self._rows_path)
            return len(missing)

        return self._worker.call(add)

    def _write_row(self, row: LateRow) -> None:
        line = self._rows.write(row)
        step = row.head.get("step")
        if line is not None and isinstance(step, int) and step > 0:
            self._last_row = LastRow(step, zlib.crc32(line))

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
    if path.is_file() and not any(message.encode() in line for line in _tail(path)):
        torn = "\n" if _torn_bytes(path) else ""
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

    def end_line(self) -> None:
        """Add a newline to a file whose last line has none."""
        self.write_lines(["\n"])

    def write(self, *values: Any) -> bytes | None:
        """Append one line and return it; None if the values cannot be written.

        `sync` and `close` raise the error of a failed write.
        """
        try:
            line = self._format_line(*values)
        except Exception as error:  # noqa: BLE001 - raised by sync() and close()
            self.failure = self.failure or error
            return None
        self.write_lines([line])
        return line.encode("utf-8", "backslashreplace")

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
                    self._num_written = 0
        except OSError as error:
            self._fail(error)

    def begin_sync(self) -> None:
        """Record that the lines of the file so far are on the disk."""
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
                self.begin_sync()
            except OSError as error:
                # The system may have dropped the lines since the last success, and
                # would report success the next time.
                self._has_lost_lines = True
                self._fail(error)

    def unsynced(self) -> list[str]:
        """Return the lines since the last successful `sync`, if a write has failed."""
        if self.failure is None:
            return []
        content = b""
        with suppress(OSError):
            if self._path.is_file():
                content = self._path.read_bytes()[self._synced_bytes :]
        whole = content[: content.rfind(b"\n") + 1]
        return [
            line.decode("utf-8", "backslashreplace")
            for line in (*whole.splitlines(keepends=True), *self._waiting)
        ]

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


def _cut(path: Path, num_bytes: int) -> None:
    """Cut a file; `os.ftruncate` continues after a signal, `os.truncate` does not."""
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), num_bytes)


def _torn_bytes(path: Path) -> int:
    """Return the length of an incomplete last line, which a killed process has left.

    The result is 0 if the last line is complete, and for a pipe or a device.
    """
    for tail, is_whole in _tails(path):
        if b"\n" in tail or is_whole:
            return len(tail) - (tail.rfind(b"\n") + 1)
    return 0


def _tails(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield the end of a file, each time four times as much, until it is whole.

    Of a log of 10^6 rows a start needs the last ones, and reads only these.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        size, num_bytes = file.seek(0, os.SEEK_END), _TAIL_BYTES
        while True:
            file.seek(max(0, size - num_bytes))
            yield file.read(), num_bytes >= size
            if num_bytes >= size:
                return
            num_bytes *= 4


def _rows_after(path: Path, position: tuple[int, bool]) -> tuple[bytes, list[bytes]]:
    """Return the last row up to a position, and the lines after it.

    Steps never decrease from row to row, so the lines are the end of the file.
    """
    for tail, is_whole in _tails(path):
        lines = tail.splitlines(keepends=True)
        if not is_whole:
            del lines[0]  # it may be the end of a line
        first = len(lines)
        for number in reversed(range(len(lines))):
            of_line = _position(lines[number])
            if of_line > position:
                first = number
            elif of_line[0] > 0:  # a damaged line has no step
                return lines[first - 1], lines[first:]
        if is_whole:
            return lines[first - 1] if first else b"", lines[first:]
    return b"", []


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file, each with its newline; empty without a file."""
    return path.read_bytes().splitlines(keepends=True) if path.is_file() else []


def _keep(path: Path, after: int, dropped: Sequence[bytes]) -> None:
    """Append rows to `metrics.aside.jsonl` that it lacks, below where they came from.

    `after` is the CRC-32 of the row before them. Rows that were brought back, and are
    dropped once more, are there already.
    """
    if not dropped:
        return
    known = {
        (before, line)
        for each in _kept(path)
        for before, line in _after_each(each.after, each.lines)
    }
    added: list[bytes] = []
    was_known = True
    for before, line in _after_each(after, dropped):
        is_known = (before, line) in known
        if was_known and not is_known:
            head = {"kind": "cut", "after": before}
            added.append(json.dumps(head).encode() + b"\n")
        if not is_known:
            added.append(line)
        was_known = is_known
    if added:
        torn = b"\n" if _torn_bytes(path) else b""
        with path.open("ab") as file:
            file.writelines([torn, *added])
            file.flush()
            os.fsync(file.fileno())


def _after_each(after: int, lines: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield each row with the CRC-32 of the row before it."""
    for line in lines:
        yield after, line
        after = zlib.crc32(line)


def _kept(path: Path) -> list[_Kept]:
    """Return what was cut off, from the content of `metrics.aside.jsonl`."""
    kept: list[_Kept] = []
    for line in _lines(path):
        row = find_object(line) or {}
        if row.get("kind") == "cut":
            kept.append(_Kept(row["after"], []))
        elif kept:
            kept[-1].lines.append(line)
    return kept


def _way_to(
    last: int, held: Mapping[int, int], kept: Sequence[_Kept]
) -> tuple[int, list[bytes]] | None:
    """Return how many rows of a file to leave, and which to append to them.

    The file then ends with the row whose CRC-32 is `last`. `held` has the number of
    rows up to each row of the file, by CRC-32. The result is None if no way leads from
    a row of the file over rows of `kept` to the last row.
    """
    if last == 0 or last in held:
        return held.get(last, 0), []
    for each in reversed(kept):
        crcs = [zlib.crc32(line) for line in each.lines]
        if last in crcs:
            others = [other for other in kept if other is not each]
            way = _way_to(each.after, held, others)
            if way is not None:
                return way[0], [*way[1], *each.lines[: crcs.index(last) + 1]]
    return None


def _last_row(path: Path) -> LastRow:
    """Return the last row of a file that has a step."""
    for line in reversed(_tail(path)):
        step, _ = _position(line)
        if step > 0:
            return LastRow(step, zlib.crc32(line))
    return LastRow()


def _tail(path: Path) -> list[bytes]:
    """Return the last lines of a file; the first of them may be incomplete."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return file.read().splitlines(keepends=True)


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


def _position(line: bytes) -> tuple[int, bool]:
    """Return the step of a line, and whether the line is an evaluation row.

    The step is 0 if the line has no integer step.
    """
    row = find_object(line) or {}
    step = row.get("step")
    return (step if isinstance(step, int) else 0), row.get("kind") == "eval"
