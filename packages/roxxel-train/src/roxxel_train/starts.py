"""The starts of a run, and which rows of its log are its result.

`metrics.jsonl` is appended to and never cut. A start writes a row of the kind `start`.
It has the CRC-32 and the place of the line after which the run continues: the last line
when the restored checkpoint was saved. The lines between that line and the start are
given up: the run repeats these steps. An ending writes a row of the kind `end`. Both
record what happened, so they count even if the rows around them are given up. A save
writes a row of the kind `save` with the digest of the state, before the checkpoint.

A reader follows the starts back from the newest one::

    start            row 1  row 2  row 3  start, after row 2  row 3  row 4
    [---------- result ---------]  (gone) [------------ result -----------]
"""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_curriculum.run_log import END, KINDS, SAVE, START
from roxxel_store.records import find_object, is_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

_HEADS = {kind: f'{{"kind": "{kind}"'.encode() for kind in KINDS}
_OF_TRAINER = tuple(_HEADS.values())
_ENVIRONMENT = ("devices", "processes", "mesh", "versions", "flags")
_LAST_LINES = 4
"""Number of lines before a start in which to look for the time of the newest row."""


@dataclass
class RunStart:
    """One start of a run, as its log records it; times are seconds since the epoch.

    Attributes:
        row: The row of the kind `start`.
        began: When the start opened the run's folder.
        ready: When its state was restored.
        step: Updates done before the start.
        ended: When it last gave a sign in the log.
        total_steps: Updates of the whole run.
        ending: The row with which it ended; empty while it trains, and after a kill.
        given_up_until: Time of its newest row, if a later start gave up some of its
            rows; else 0.
        is_part: Whether the result has rows of this start, or of starts that follow
            from it.

    Example:
        >>> RunStart({}, began=8.0, ready=9.0, step=40, ended=99.0).ready
        9.0
    """

    row: Mapping[str, Any]
    began: float
    ready: float
    step: int
    ended: float
    total_steps: int = 0
    ending: Mapping[str, Any] = field(default_factory=dict[str, Any])
    given_up_until: float = 0.0
    is_part: bool = True

    @property
    def is_idle(self) -> bool:
        """Whether all steps were done, so that the start trained nothing."""
        return 0 < self.total_steps <= self.step

    @property
    def kept(self) -> float | None:
        """Share of the wall time in kept steps, when the run ended; None before."""
        kept = self.ending.get("kept")
        return kept if isinstance(kept, float) else None


@dataclass(frozen=True)
class Followed:
    """The content of a log.

    Attributes:
        starts: The starts, in order.
        kept: Ranges of bytes with the lines of the result, in order.
        ending: The row of the kind `end` after the newest start; empty without one.
        saves: The lines of saves in the result, in order.

    Example:
        >>> from pathlib import Path
        >>> log = Path("metrics.jsonl")
        >>> _ = log.write_text('{"kind": "train", "step": 1}')
        >>> followed = follow(log)
        >>> [*followed.lines(log)], len(followed.starts)
        ([b'{"kind": "train", "step": 1}'], 0)
    """

    starts: Sequence[RunStart] = ()
    kept: Sequence[tuple[int, int]] = ()
    ending: Mapping[str, Any] = field(default_factory=dict[str, Any])
    saves: Sequence[bytes] = ()

    def lines(self, path: Path) -> Iterator[bytes]:
        """Yield the lines of metrics in the result."""
        if not self.kept:
            return
        with path.open("rb") as file:
            for begin, stop in self.kept:
                file.seek(begin)
                left = stop - begin
                while left > 0 and (line := file.readline()):
                    left -= len(line)
                    if not line.startswith(_OF_TRAINER):
                        yield line

    def newest_lines(self, path: Path, most: int) -> Iterator[bytes]:
        """Yield like `lines`, the newest first, from the last `most` bytes."""
        if not self.kept:
            return
        with path.open("rb") as file:
            for begin, stop in reversed(self.kept):
                at = max(begin, stop - most)
                file.seek(at)
                lines = file.read(stop - at).splitlines(keepends=True)
                whole = lines if at == begin else lines[1:]
                yield from (x for x in reversed(whole) if not x.startswith(_OF_TRAINER))
                most -= stop - at


def follow(path: Path) -> Followed:
    """Follow the starts of a log; if there is no log, the result is empty.

    This is one pass over the file, and decodes only starts, endings and the rows before
    them.
    """
    log = _Log()
    if not path.is_file():
        return Followed()
    with path.open("rb") as file:
        for line in file:
            log.add(line)
        return log.followed(file)


class _Log:
    """The lines of a log by number: where each ends, its CRC-32, and the starts."""

    def __init__(self) -> None:
        self._ends = array("q")
        self._crcs = array("I")
        self._firsts: list[int] = []
        self._stops: list[int] = []  # after the last row of each start
        self._starts: list[RunStart] = []
        self._ending: Mapping[str, Any] = {}
        self._saves: list[tuple[int, bytes]] = []  # where each begins, and its line
        self._last: deque[bytes] = deque(maxlen=_LAST_LINES)
        self._size = 0

    def add(self, line: bytes) -> None:
        """Add the next line."""
        self._size += len(line)
        if line.startswith(_HEADS[START]):
            row = find_object(line)
            if row is not None:
                self._end_segment()
                self._starts.append(_start_of(row))
                self._firsts.append(len(self._ends))
                self._stops.append(0)
                self._ending = {}
        elif line.startswith(_HEADS[END]):
            self._ending = row = find_object(line) or {}
            # A later start that failed before its row has an ending too.
            if self._starts and not self._starts[-1].ending:
                self._last.append(line)
                self._end_segment()
                self._starts[-1].ending = row
        elif line.startswith(_HEADS[SAVE]):
            self._saves.append((self._size - len(line), line))
        self._last.append(line)
        self._ends.append(self._size)
        self._crcs.append(zlib.crc32(line))
        if self._stops and not line.startswith(_HEADS[END]):
            self._stops[-1] = len(self._ends)

    def followed(self, file: Any) -> Followed:
        """Return the content of the log; `file` is the log, open for reading."""
        self._end_segment()
        ends = np.frombuffer(self._ends, np.int64) if self._ends else np.zeros(0, int)
        stop = len(ends)
        kept: list[tuple[int, int]] = []
        after = self._found(ends)
        for start in self._starts:
            start.is_part = False
        while stop:
            # The start whose rows line `stop - 1` is among; -1 before the first.
            index = int(np.searchsorted(self._firsts, stop, "left")) - 1
            first = self._firsts[index] if index >= 0 else 0
            kept.append((int(ends[first - 1]) if first else 0, int(ends[stop - 1])))
            if index < 0:
                break
            start = self._starts[index]
            start.is_part = True
            stop = after[index]
            if stop < 0:
                stop = _up_to(file, first, start.step)
        self._note_given_up(kept, ends)
        kept.reverse()
        saves = [
            line
            for at, line in self._saves
            if any(begin <= at < end for begin, end in kept)
        ]
        return Followed(self._starts, kept, self._ending, saves)

    def _end_segment(self) -> None:
        """Let the newest start end with its newest row, if it has not ended."""
        if self._starts and not self._starts[-1].ending:
            start = self._starts[-1]
            for row in map(find_object, self._last):
                start.ended = max(start.ended, time_of((row or {}).get("time")) or 0.0)

    def _found(self, ends: npt.NDArray[np.int64]) -> list[int]:
        """Return for each start how many lines lead up to its row; -1 without one."""
        crcs = np.frombuffer(self._crcs, np.uint32)
        found: list[int] = []
        for start, first in zip(self._starts, self._firsts, strict=True):
            after = start.row.get("after")
            if not isinstance(after, int) or not 0 < after < 1 << 32:
                found.append(0)
                continue
            same = np.flatnonzero(crcs[:first] == after)
            # Of equal lines `at` tells which. Lines before it may have been lost.
            exact = same[ends[same] == _count(start.row.get("at"))]
            found.append(int([-1, *same[-1:], *exact][-1]) + 1 if len(same) else -1)
        return found

    def _note_given_up(
        self, kept: Sequence[tuple[int, int]], ends: npt.NDArray[np.int64]
    ) -> None:
        """Record the newest time of rows that a later start gave up."""
        kept_to = dict(kept)
        bounds = zip(self._starts, self._firsts, self._stops, strict=True)
        for start, first, stop in bounds:
            begin = int(ends[first - 1]) if first else 0
            held = kept_to.get(begin, int(ends[first]))
            if held < int(ends[stop - 1]):
                start.given_up_until = start.ended


def environment_differences(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield how machine and software of two starts differ: a name and both values.

    Args:
        a: Row of a start.
        b: Row of another.

    Example:
        >>> rows = [{"mesh": {"data": count}} for count in (8, 4)]
        >>> list(environment_differences(*rows))
        [('mesh.data', 8, 4)]
    """
    for name in _ENVIRONMENT:
        x, y = a.get(name), b.get(name)
        if not isinstance(x, dict) or not isinstance(y, dict):
            x, y = {"": x}, {"": y}
        one, other = cast("dict[str, Any]", x), cast("dict[str, Any]", y)
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                where = f"{name}.{key}" if key else name
                yield where, one.get(key), other.get(key)


def time_of(text: object) -> float | None:
    """Return a time in ISO 8601 as seconds since the epoch; None for another value."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _start_of(row: Mapping[str, Any]) -> RunStart:
    """Return the start that a row describes; unreadable values count as 0."""
    ready, seconds = time_of(row.get("time")) or 0.0, row.get("seconds")
    took = max(0.0, seconds) if isinstance(seconds, float) else 0.0
    step, total = (_count(row.get(name)) for name in ("step", "total_steps"))
    return RunStart(row, ready - took, ready, step, ready, total)


def _count(value: Any) -> int:
    return value if is_count(value) else 0


def _up_to(file: Any, num_lines: int, step: int) -> int:
    """Return the number of the last line with metrics up to a step; 0 if none has them.

    Looks only at the first `num_lines` lines of the file.
    """
    file.seek(0)
    last = 0
    for number in range(1, num_lines + 1):
        row = find_object(file.readline()) or {}
        at = row.get("step")
        if isinstance(at, int) and at <= step and row.get("kind") not in KINDS:
            last = number
    return last
