"""What the folder of a run says, read without JAX.

The run may be going on, or have ended in the middle of a line: what is whole is read,
what is not is counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from roxxel_ckpt import read_description

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from pathlib import Path

METRICS, SYSTEM_LOG, RECORD = "metrics.jsonl", "system.log", "run.json"
CHECKPOINTS, LOCK = "checkpoints", "run.lock"

_GREATEST_COUNT = 2**63
"""Nothing that a run counts is as great."""

_GREATEST_NUMBER = 1e300
"""What is as great cannot be drawn."""

_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([A-Z]+) (.*)", re.DOTALL)


class RunFolderError(ValueError):
    """A folder that holds no run, or one that cannot be read."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, as it describes itself.

    Attributes:
        step: Updates done.
        metrics: Numbers saved with it.
        extra: What the trainer saved beside the arrays; `"data"` is the state of the
            order of the data.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class LogEntry:
    """One entry of `system.log`.

    Attributes:
        time: As it stands there, in UTC.
        level: `INFO`, `WARNING` or `ERROR`.
        text: One line, or several with a traceback.
    """

    time: str
    level: str
    text: str


def check_run(folder: Path) -> None:
    """Check that a folder holds a run.

    Raises:
        RunFolderError: It does not.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise RunFolderError(f"{folder}: {what}; give the folder of a run")
    if not any((folder / name).exists() for name in (RECORD, METRICS, CHECKPOINTS)):
        raise RunFolderError(
            f"{folder}: holds no run ({RECORD}, {METRICS} and {CHECKPOINTS}/ are "
            "missing); give the save_path of one"
        )


def read_record(folder: Path) -> dict[str, Any]:
    """Return `run.json`, empty where it is missing or damaged."""
    try:
        content = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(cast("dict[str, Any]", content)) if isinstance(content, dict) else {}


def read_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the whole checkpoints of a run, oldest first."""
    place = folder / CHECKPOINTS
    names = [entry.name for entry in place.iterdir()] if place.is_dir() else []
    steps = sorted(int(name) for name in names if name.isdecimal())
    found = (_checkpoint(place, step) for step in steps)
    return [checkpoint for checkpoint in found if checkpoint is not None]


def newest_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the data that a run goes on from, None for a new run."""
    if not folder.is_dir():
        return None
    checkpoints = read_checkpoints(folder)
    state = checkpoints[-1].extra.get("data") if checkpoints else None
    return state or read_record(folder).get("data")


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of `metrics.jsonl`, and how many lines are no rows.

    The last line is not counted where it is cut short: it is being written, or a crash
    cut it.
    """
    rows: list[dict[str, Any]] = []
    damaged = 0
    path = folder / METRICS
    if not path.exists():
        return rows, damaged
    for line in path.read_bytes().splitlines(keepends=True):
        row = _row(line)
        if row is not None:
            rows.append(row)
        elif line.endswith(b"\n"):
            damaged += 1
    return rows, damaged


def read_log(folder: Path) -> list[LogEntry]:
    """Return the entries of `system.log`; lines of a traceback belong to theirs."""
    path = folder / SYSTEM_LOG
    if not path.exists():
        return []
    return list(_entries(path.read_text(encoding="utf-8", errors="replace")))


def is_running(folder: Path) -> bool:
    """Return whether a process trains in this folder now."""
    with _lock(folder) as is_free:
        return not is_free


@contextlib.contextmanager
def claimed(folder: Path) -> Generator[None]:
    """Keep trainers out of a folder for a moment.

    Raises:
        RunFolderError: A process trains in it.
    """
    with _lock(folder) as is_free:
        if not is_free:
            raise RunFolderError(
                f"{folder}: another process is training in this folder; "
                "wait for it or give another save_path"
            )
        yield


@contextlib.contextmanager
def _lock(folder: Path) -> Generator[bool]:
    """Hold the lock that a trainer holds while it runs, where it is free."""
    path = folder / LOCK
    if not path.exists():
        yield True
        return
    with path.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def number(value: Any) -> float | None:
    """Return a finite number of a row; None for text, NaN and infinities."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _GREATEST_NUMBER else None


def is_count(value: Any) -> bool:
    """Return whether a value is a number of steps, tokens and the like."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 <= value < _GREATEST_COUNT


def _checkpoint(place: Path, step: int) -> Checkpoint | None:
    """Return a checkpoint's description, None where it is not whole."""
    try:
        description = read_description(place / str(step))
        metrics = {name: number(v) for name, v in description.metrics.items()}
        extra = dict(description.extra or {})
    except (OSError, ValueError, TypeError):
        return None
    finite = {name: value for name, value in metrics.items() if value is not None}
    return Checkpoint(step, finite, extra)


def _row(line: bytes) -> dict[str, Any] | None:
    """Return a row of metrics, without known fields of another type; or None."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    fields = cast("dict[str, Any]", row)
    if not is_count(fields.get("step")) or not isinstance(fields.get("kind"), str):
        return None
    if not is_count(fields.get("phase")):
        fields.pop("phase", None)
    tokens = fields.pop("tokens_by_source", None)
    if isinstance(tokens, dict):
        counts = cast("dict[str, Any]", tokens).items()
        fields["tokens_by_source"] = {k: v for k, v in counts if is_count(v)}
    return fields


def _entries(text: str) -> Iterator[LogEntry]:
    entry: LogEntry | None = None
    for line in text.splitlines():
        found = _LOG_LINE.fullmatch(line)
        if found:
            if entry is not None:
                yield entry
            entry = LogEntry(found[1], found[2], found[3])
        elif entry is not None:
            entry = LogEntry(entry.time, entry.level, f"{entry.text}\n{line}")
    if entry is not None:
        yield entry
