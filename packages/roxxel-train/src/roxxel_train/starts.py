"""The lines of `system.log` that say how the starts of a run began and ended.

They are composed and read here alone. Who counts wall time or lists runs gets a
`RunStart` and knows no sentence, and a test reads back every line that this module
composes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from roxxel_store.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_START = re.compile(
    r"starts: (?P<new>\d+) steps|already complete: \d+ of (?P<done>\d+)|"
    r"resumed from step (?P<step>\d+) of (?P<total>\d+)(?: in (?P<seconds>[\d.]+) s)?"
)
_BRANCH = re.compile(r"begins as a branch of step (\d+) of ")
_DROPPED = re.compile(r"\d+ rows? of metrics after step \d+, the newest at (\S+), ")
_SPENT = re.compile(r"wall time: (\d+(?:\.\d+)?) % of ")


@dataclass
class RunStart:
    """One start of a run, as its log records it; times are seconds since the epoch.

    Attributes:
        began: When the start opened the run's folder.
        ready: When its state was restored.
        step: Updates done before it.
        ended: When it last gave a sign in the log.
        total_steps: Updates of the whole run.
        is_idle: Whether the run was complete, so that the start did nothing.
        dropped_until: Time of the newest metrics row of the start before, if this one
            dropped some; else 0.
        kept: Share of the wall time of all starts in steps that are part of the result,
            which this one logged at its end; None before.

    Example:
        >>> RunStart(began=8.0, ready=9.0, step=40, ended=99.0, total_steps=50).ready
        9.0
    """

    began: float
    ready: float
    step: int
    ended: float
    total_steps: int
    is_idle: bool = False
    dropped_until: float = 0.0
    kept: float | None = None


def starts_in(log: Iterable[tuple[str, str]]) -> list[RunStart]:
    """Return the starts in a log: the time (ISO 8601) and the text of each entry.

    After the wall time, with which a start ends, and during a restore, entries are no
    sign of the start before: a warning about a checkpoint may come a day later.
    """
    starts: list[RunStart] = []
    signs: list[float] = []
    for text_time, text in log:
        time = time_of(text_time)
        if time is None:
            continue
        if (found := _START.match(text)) is not None:
            began = time - float(found["seconds"] or 0)
            _end(starts, [sign for sign in signs if sign < began])
            total = int(found["new"] or found["done"] or found["total"])
            step = int(found["done"] or found["step"] or 0)
            is_idle = found["done"] is not None
            starts.append(RunStart(began, time, step, time, total, is_idle))
            signs = []
        if not starts:
            continue
        last = starts[-1]
        if last.kept is None:
            signs.append(time)
        if (found := _BRANCH.match(text)) is not None:
            last.step = int(found[1])
        elif (found := _DROPPED.match(text)) is not None:
            last.dropped_until = max(last.dropped_until, time_of(found[1]) or 0.0)
        elif (found := _SPENT.match(text)) is not None:
            last.kept = float(found[1]) / 100
    _end(starts, signs)
    return starts


def _end(starts: Sequence[RunStart], signs: Sequence[float]) -> None:
    """Let the last start end with the last of its signs."""
    if starts:
        starts[-1].ended = max([starts[-1].ended, *signs])


def time_of(text: str) -> float | None:
    """Return a time in ISO 8601 as seconds since the epoch; None for another text."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def begins(total: int, num_phases: int) -> str:
    """Return the first line of a new run."""
    return f"starts: {total} steps in {counted(num_phases, 'phase')}"


def resumes(step: int, total: int, seconds: float) -> str:
    """Return the first line of a run that goes on; restoring took `seconds`."""
    return f"resumed from step {step} of {total} in {seconds:.2f} s"


def is_complete(total: int, more: str = "") -> str:
    """Return the first line of a start that has nothing to do."""
    return f"already complete: {total} of {total} steps are done{more}"


def branches(step: int, path: str) -> str:
    """Return the line of a branch of another run, from the checkpoint of a step."""
    return f"begins as a branch of step {step} of {path}"


def drops(number: int, step: int, newest: str | None, what: str) -> str:
    """Return the line about rows of metrics after `step`, and `what` happened to them.

    `newest` is the time of the newest of them.
    """
    rows = counted(number, "row")
    return f"{rows} of metrics after step {step}, the newest at {newest}, {what}"


def spent(line: str) -> str:
    """Return the line about where the wall time of all starts went: `Goodput.line`."""
    return f"wall time: {line}"
