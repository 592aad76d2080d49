"""Reads the folder of a run, without JAX.

The run may still be training, or a crash may have left a file incomplete. The functions
return the undamaged rows and checkpoints, and count or list the damaged ones.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from roxxel_ckpt import read_description
from roxxel_store.locks import try_lock
from roxxel_train import data_state, fetch_run

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from roxxel_ckpt import BestRule

METRICS, SYSTEM_LOG, RECORD = "metrics.jsonl", "system.log", "run.json"
DATA = "data.json"
CHECKPOINTS, LOCK = "checkpoints", "run.lock"

PRIMARY = "self"
"""Name of the primary source in states, and in runs that give it no other name."""

_BY_SOURCE = {"tokens_by_source", "planned_tokens_by_source", "rows_by_source"}
"""Fields of a training row with a value for each source."""

_GREATEST_COUNT = 2**63
"""Bound of plausible step and token counts; a larger count means a damaged file."""

_GREATEST_NUMBER = 1e300
"""Numbers of this absolute value or more count as missing: charts would overflow."""

_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ) ([A-Z]+) (.*)", re.DOTALL)


class RunFolderError(ValueError):
    """A folder is not a readable run, or a report cannot be written to `--out`.

    >>> from pathlib import Path
    >>> try:
    ...     check_run(Path("nowhere"))
    ... except RunFolderError as error:
    ...     print(error)
    nowhere: there is no such folder; give the folder of a run
    """


@dataclass(frozen=True)
class Checkpoint:
    """The description of one checkpoint.

    Attributes:
        step: Updates done.
        metrics: Numbers saved with the checkpoint.
        extra: JSON values that the trainer saved beside the arrays; `"data"` is the
            result of `Sampler.state`.
        best: The rule by which the run ranks its checkpoints; None if the checkpoint
            does not record a rule.

    >>> from pathlib import Path
    >>> whole, steps_of_damaged = read_checkpoints(Path())
    >>> [checkpoint.step for checkpoint in whole]
    []
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    best: BestRule | None = None


@dataclass(frozen=True)
class Parent:
    """The checkpoint of another run from which a run started.

    Attributes:
        path: Folder or URL of the other run. If the checkpoint was not in a run's
            folder, the folder of checkpoints that held it.
        step: Step of the checkpoint.
        is_branch: Whether the run continues the other run from `step` on. If not, the
            run took only the weights, and began at step 0.
        run_id: The `id` in `run.json` of the other run; None if not recorded.
        digest: Digest of the checkpoint; None if not recorded.
        tokens: Tokens that the other run had read at `step`; 0 unless `is_branch`.
        tokens_by_source: The same tokens by source. Empty if `is_branch` is false, or
            if `run.json` does not record these tokens.

    >>> str(Parent("runs/a", 100, is_branch=True))
    'step 100 of runs/a'
    """

    path: str
    step: int
    is_branch: bool
    run_id: str | None = None
    digest: str | None = None
    tokens: int = 0
    tokens_by_source: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"step {self.step:,} of {self.path}"


@dataclass(frozen=True)
class LogEntry:
    """One entry of `system.log`.

    Attributes:
        time: Time in UTC, ISO 8601.
        level: `INFO`, `WARNING` or `ERROR`.
        text: One line, or several lines that end in a traceback.

    >>> from pathlib import Path
    >>> _ = Path("system.log").write_text("2026-11-21T12:00:00Z INFO starts: 8 steps")
    >>> read_log(Path())[0].text
    'starts: 8 steps'
    """

    time: str
    level: str
    text: str


def local_folder(run: Path | str) -> Path:
    """Return the folder of a run; for a URL, a local copy of its files.

    Raises:
        CheckpointBucketError: The bucket cannot be read.
        ValueError: The URL cannot be used.
    """
    return fetch_run(run) if isinstance(run, str) else run


def check_run(folder: Path) -> None:
    """Check that a folder holds a run.

    Raises:
        RunFolderError: The folder does not exist or does not hold a run.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "there is no such folder"
        raise RunFolderError(f"{folder}: {what}; give the folder of a run")
    if not any((folder / name).exists() for name in (RECORD, METRICS, CHECKPOINTS)):
        raise RunFolderError(
            f"{folder}: holds no run ({RECORD}, {METRICS} and {CHECKPOINTS}/ are "
            "missing); give the save_path of a run"
        )


def read_record(folder: Path) -> dict[str, Any] | None:
    """Return `run.json`: empty if it is missing, None if it is damaged."""
    if not (folder / RECORD).exists():
        return {}
    try:
        content = json.loads(_bytes_of(folder / RECORD))
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


def read_parent(folder: Path) -> Parent | None:
    """Return the checkpoint from which a run started; None if `run.json` has none."""
    record = read_record(folder) or {}
    primary = read_primary(folder)
    for option in ("branch_from", "init_from"):
        found: Any = record.get(option)
        try:
            is_branch = option == "branch_from"
            return Parent(
                str(found["path"]),
                int(found["step"]),
                is_branch,
                found.get("run_id"),
                found.get("digest"),
                _tokens(record["data"]) if is_branch else 0,
                {
                    shown_name(name, primary): count
                    for name, count in _counts(found.get("tokens_by_source")).items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return None


def read_primary(folder: Path) -> str:
    """Return the name of the primary source at the last start of a run.

    The name is `"self"` if the run gives it no name, or if `data.json` is damaged.
    """
    try:
        return str(json.loads(_bytes_of(folder / DATA))["primary"])
    except (OSError, ValueError, KeyError, TypeError):
        return PRIMARY


def shown_name(source: str, primary: str) -> str:
    """Return the shown name of a source; `"self"` stands for the primary."""
    return primary if source == PRIMARY else source


def _counts(value: Any) -> dict[str, int]:
    """Return the counts of a mapping by name; empty for another value."""
    if not isinstance(value, dict):
        return {}
    found = cast("dict[str, Any]", value)
    return {name: count for name, count in found.items() if is_count(count)}


def _tokens(state: Mapping[str, Any]) -> int:
    """Return the number of tokens in the trained steps of a data state."""
    phases = state["phases"]
    stops = [*(phase["start"] for phase in phases[1:]), state["step"]]
    return sum(
        (stop - phase["start"]) * phase["batch_size"] * phase["seq_len"]
        for phase, stop in zip(phases, stops, strict=True)
    )


def read_checkpoints(folder: Path) -> tuple[list[Checkpoint], list[int]]:
    """Return the undamaged checkpoints and the steps of damaged ones, ascending."""
    parent = folder / CHECKPOINTS
    names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
    steps = sorted(int(name) for name in names if name.isdecimal())
    found = {step: _checkpoint(parent / str(step), step) for step in steps}
    whole = [checkpoint for checkpoint in found.values() if checkpoint is not None]
    return whole, [step for step in steps if found[step] is None]


def newest_state(folder: Path | str) -> dict[str, Any] | None:
    """Return `roxxel_train.data_state` of a folder; None if the folder holds no run.

    Raises:
        RunMismatchError: `run.json` is damaged or of another version, or a checkpoint
            was not written by a trainer.
        CheckpointError: All checkpoints are damaged.
    """
    try:
        return data_state(folder)
    except FileNotFoundError:
        return None


def read_rows(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of `metrics.jsonl`, and the number of damaged lines.

    A last line without a newline does not count as damaged: the trainer is still
    writing the line, or a crash has left it incomplete.

    If the name of the primary source changed during the run, all rows have the newest
    name.

    Raises:
        RunFolderError: `metrics.jsonl` is not a regular file.
    """
    rows: list[dict[str, Any]] = []
    damaged = 0
    primary = read_primary(folder)
    for line in _bytes_of(folder / METRICS).splitlines(keepends=True):
        row = _row(line)
        if row is not None:
            rows.append(_with_primary(row, primary))
        elif line.endswith(b"\n"):
            damaged += 1
    return rows, damaged


def read_log(folder: Path) -> list[LogEntry]:
    """Return the entries of `system.log`, each with its traceback.

    Raises:
        RunFolderError: `system.log` is not a regular file.
    """
    entries: list[LogEntry] = []
    content = _bytes_of(folder / SYSTEM_LOG)
    for line in content.decode(errors="replace").splitlines():
        found = _LOG_LINE.fullmatch(line)
        if found:
            entries.append(LogEntry(*found.groups()))
        elif entries:
            last = entries[-1]
            entries[-1] = replace(last, text=f"{last.text}\n{line}")
    return entries


def is_running(folder: Path) -> bool:
    """Return whether a process is training in a folder."""
    with _lock(folder) as is_free:
        return not is_free


@contextlib.contextmanager
def claimed(folder: Path) -> Generator[None]:
    """Hold the trainer's lock, `run.lock`, inside the block, if this file exists.

    Raises:
        RunFolderError: Another process is training in the folder.
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
    """Lock `run.lock` inside the block; yield False if another process holds it."""
    path = folder / LOCK
    if not path.is_file():  # opening a named pipe would wait for a writer
        yield True
        return
    with path.open("rb") as lock:
        yield try_lock(lock.fileno()) is not False


def _bytes_of(path: Path) -> bytes:
    """Return the content of a file; empty if the file does not exist.

    Raises:
        RunFolderError: The path is not a regular file. Opening a named pipe, for
            instance, would wait for a writer.
    """
    if not path.exists():
        return b""
    if not path.is_file():
        raise RunFolderError(
            f"{path}: is not a regular file; restore the file, or remove the path"
        )
    return path.read_bytes()


def number(value: Any) -> float | None:
    """Return a finite number of a row; None for text, NaN and infinities."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _GREATEST_NUMBER else None


def is_count(value: Any) -> bool:
    """Return whether a value is a plausible number of steps or tokens."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 <= value < _GREATEST_COUNT


def _checkpoint(path: Path, step: int) -> Checkpoint | None:
    """Return the description of a checkpoint; None if it is damaged."""
    try:
        description = read_description(path)
        metrics = {name: number(v) for name, v in description.metrics.items()}
        extra = dict(description.extra or {})
    except (OSError, ValueError, TypeError):
        return None
    finite = {name: value for name, value in metrics.items() if value is not None}
    return Checkpoint(step, finite, extra, description.best)


def _with_primary(row: dict[str, Any], primary: str) -> dict[str, Any]:
    """Return a row in which the name `primary` replaces the recorded name."""
    known = row.get("primary_source", PRIMARY)
    if row["kind"] != "train" or known == primary:
        return row

    def renamed(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        old, new = f"{prefix}{known}", f"{prefix}{primary}"
        if old not in values or new in values:
            return dict(values)
        return {new if name == old else name: x for name, x in values.items()}

    found = {
        name: renamed(cast("dict[str, Any]", value))
        if name in _BY_SOURCE and isinstance(value, dict)
        else value
        for name, value in renamed(row, "loss/").items()
        if name != "primary_source"
    }
    return found if primary == PRIMARY else {**found, "primary_source": primary}


def _row(line: bytes) -> dict[str, Any] | None:
    """Parse a row; return None if it is damaged.

    If only the phase or the token counts are invalid, the row lacks these values.
    """
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
        fields["tokens_by_source"] = _counts(tokens)
    return fields
