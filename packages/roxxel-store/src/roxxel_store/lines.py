"""Append lines to a file, and write rows as lines of JSON.

Every line goes to the kernel at once, so a killed program loses none, and readers can
tell a torn last line from a whole one. A line that cannot be written waits for the next
write.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from roxxel_store.locks import try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

NOT_NUMBERS = {str(each): each for each in (math.nan, math.inf, -math.inf)}
"""What JSON has no numbers for, by the text that a row has instead."""

_TAIL_BYTES = 1 << 20


class LinePosition(NamedTuple):
    """Where a file of lines ends: what a checkpoint keeps, and the next start follows.

    Attributes:
        after: CRC-32 of the last line that is certainly on the disk; 0 if there is
            none.
        at: Bytes of the file up to the end of this line; they tell it from an equal
            line.
        unwritten: Later lines that may not be on the disk, because a write failed;
            usually none.

    Example:
        >>> LinePosition(after=0xCAFE, at=512).unwritten
        ()
    """

    after: int
    at: int = 0
    unwritten: Sequence[str] = ()


class LineFile:
    r"""Appends lines to one file. One program at a time holds the file's lock.

    The lines that could not be written are tried again at the next write.

    Attributes:
        failure: The error of the first failed write.

    Example:
        >>> from pathlib import Path
        >>> file = LineFile(Path("rows.jsonl"))
        >>> file.begin()
        >>> file.write_lines([json_line({"step": 1})])
        >>> file.close()
        >>> Path("rows.jsonl").read_text()
        '{"step": 1}\n'
    """

    def __init__(self, path: Path) -> None:
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
        """Lock the file.

        On a file system without locks, a second writer is not detected.

        Raises:
            BlockingIOError: Another program, or another object, has locked it.
        """
        if try_lock(self._file.fileno()) is False:
            raise BlockingIOError(f"{self._path}: another writer has this file open")

    def begin(self) -> None:
        """Continue behind the lines that the file has.

        A killed process may have torn the last one. Such a line stays, and readers
        leave it out.
        """
        last = _last_line(self._path)
        if last and not last.endswith(b"\n"):
            self.write_lines(["\n"])
            last += b"\n"
        # `position` names the line after which this start goes on, whole or torn.
        self._crc = zlib.crc32(last)
        self._note_sync()

    def write(self, make_line: Callable[..., str], *values: Any) -> None:
        """Append the line that `make_line(*values)` returns; errors as below."""
        try:
            line = make_line(*values)
        except Exception as error:  # noqa: BLE001 - raised by sync() and close()
            self.failure = self.failure or error
            return
        self.write_lines([line])

    def write_lines(self, lines: Sequence[str]) -> None:
        """Append lines; `sync` and `close` raise the error of a failed write."""
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

    def position(self) -> LinePosition:
        """Return the last line that a successful `sync` wrote, and the lines since."""
        if self.failure is None:
            return LinePosition(self._synced_crc, self._synced_bytes)
        content = b""
        with suppress(OSError):
            if self._path.is_file():
                with self._path.open("rb") as file:
                    file.seek(self._synced_bytes)
                    content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        lines = [*whole.splitlines(keepends=True), *self._waiting]
        return LinePosition(
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


def json_line(row: Mapping[Any, Any]) -> str:
    r"""Return a row as one line of JSON; NaN and infinities become text.

    Example:
        >>> json_line({"loss": float("nan")})
        '{"loss": "nan"}\n'
    """
    return json.dumps(plain_row(row, for_json=True), allow_nan=False) + "\n"


def plain_row(row: Mapping[Any, Any], *, for_json: bool = False) -> dict[str, Any]:
    """Copy a metrics row into Python's own types: arrays to lists, keys to text.

    With `for_json`, NaN and infinities become text, because JSON has no such numbers.

    Raises:
        ValueError: Two keys have the same text.
    """
    return cast("dict[str, Any]", _plain(dict(row), for_json=for_json))


def _last_line(path: Path, stop: int | None = None) -> bytes:
    """Return the last line of a file, whole or torn; nothing for a pipe or a device.

    With `stop`, return the last line of its first `stop` bytes.
    """
    for tail, is_whole in tails(path, stop) if path.is_file() else ():
        before, newline, _ = tail[:-1].rpartition(b"\n")
        if newline or is_whole:
            return tail[len(before) + len(newline) :]
    return b""


def tails(path: Path, stop: int | None = None) -> Iterator[tuple[bytes, bool]]:
    """Yield the end of a file, four times longer each time, at last all of it.

    With `stop`, yield the ends of its first `stop` bytes.
    """
    with path.open("rb") as file:
        size, num_bytes = file.seek(0, os.SEEK_END), _TAIL_BYTES
        if stop is not None:
            size = min(size, stop)
        while True:
            begin = file.seek(max(0, size - num_bytes))
            yield file.read(size - begin), num_bytes >= size
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
