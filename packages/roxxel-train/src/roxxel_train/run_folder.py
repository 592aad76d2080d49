"""Read the files of a run, without JAX: rows, log, checkpoints, records and data.

The run may still be training, or a crash may have left a file incomplete. So a method
of `RunFolder` returns the undamaged rows and checkpoints, and counts or lists the
damaged ones. Nothing is ever changed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import msgspec
from roxxel_ckpt import (
    CheckpointDamagedError,
    CheckpointNotFoundError,
    read_description,
)
from roxxel_ckpt.values import STATE_DIGEST
from roxxel_curriculum import StateMismatch
from roxxel_curriculum.run_log import METRICS
from roxxel_curriculum.state import checked_state
from roxxel_store.locks import try_lock
from roxxel_store.records import find_object, is_count, number
from roxxel_store.urls import bucket_url, expanded

from roxxel_train._files.folder import (
    AUTOTUNE,
    CHECKPOINTS,
    CONFIG,
    EVALS,
    LOCK,
    PROFILE,
    RECORD,
    find_record,
)
from roxxel_train._files.log import SYSTEM_LOG
from roxxel_train._files.mirror import fetch_run
from roxxel_train._files.reference import Reference, parse_reference
from roxxel_train.columns import Columns, read_columns
from roxxel_train.config import SINKS
from roxxel_train.errors import RunFolderError, RunMismatchError
from roxxel_train.goodput import Goodput, goodput
from roxxel_train.starts import Followed, RunStart, follow

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from roxxel_ckpt import BestRule, Description

PRIMARY = "self"
"""Name of the primary source in states, and in runs that do not name it."""

_MEASURING = ("train", "eval")
"""Kinds of the rows with a trainer's measurements."""

_LONGEST_ROW = 2**16

_LOG_LINE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z) ([A-Z]+) (.*)", re.DOTALL
)


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

    Example:
        >>> Checkpoint(100, {"loss": 2.5}).metrics["loss"]
        2.5
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
        run_id: The `id` in `run.json` of the other run; None if the checkpoint was not
            in a run's folder.
        digest: Digest of the checkpoint.
        tokens: Tokens that the other run had read at `step`; 0 unless `is_branch`.
        tokens_by_source: The same tokens by source. Empty unless `is_branch`.

    Example:
        >>> str(Parent("runs/a", 100, is_branch=True))
        'step 100 of runs/a'
    """

    path: str
    step: int
    is_branch: bool
    run_id: str | None = None
    digest: str = ""
    tokens: int = 0
    tokens_by_source: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"step {self.step:,} of {self.path}"

    def below(self, given: str | os.PathLike[str]) -> str:
        """Return the text that names this checkpoint in a folder.

        Args:
            given: Where the parent's folder is now, as `init_from` or `branch_from`
                names it. A step in this text is replaced.

        >>> Parent("runs/a", 100, is_branch=True).below("moved/a")
        'moved/a@100'
        """
        return f"{parse_reference(os.fspath(given)).path}@{self.step}"


@dataclass(frozen=True)
class RunData:
    """The data of a run, as recorded in its folder.

    Attributes:
        sources: Location of each source at the last start of the run: an absolute path,
            a list of paths, or a URL; None for a reader that is not a `Roxxel`.
        state: `Sampler.state` at the last step that the last start planned.
        trained: `data_state` of the run, which determines the trained batches.

    Example:
        >>> data = RunData({"self": "web_*.rox"}, {"step": 8}, {"step": 6})
        >>> data.state["step"]
        8
    """

    sources: Mapping[str, str | list[str] | None]
    state: Mapping[str, Any]
    trained: Mapping[str, Any]


@dataclass(frozen=True)
class LogEntry:
    """One entry of `system.log`.

    Attributes:
        time: Time in UTC, ISO 8601.
        level: `INFO`, `WARNING` or `ERROR`.
        text: One line, or several lines that end in a traceback.

    Example:
        >>> LogEntry("2026-11-21T12:00:00Z", "INFO", "starts: 8 steps").level
        'INFO'
    """

    time: str
    level: str
    text: str


class RunFolder:
    """The files of a run, to read them while it trains or after it has ended.

    Making this object checks nothing. Each file is read once, when it is first needed.
    Make another object to see what the run has added since. Call `check` first if a
    folder without a run would be a mistake.

    Args:
        run: Folder of the run, its `save_path`. For a URL, the files of the run are
            copied to this machine, without the arrays of the checkpoints.

    Attributes:
        NAMES: Names of all files and folders that a trainer may make in `path`.
        path: Local folder with the files.
        location: The folder or URL, as given.

    Raises:
        CheckpointBucketError: The bucket cannot be read.
        RunMismatchError: The files in the bucket are damaged.

    Example:
        >>> from pathlib import Path
        >>> row = '{"kind": "train", "step": 3, "loss": 2.5}'
        >>> _ = Path("metrics.jsonl").write_text(row)
        >>> rows, num_damaged = RunFolder(".").rows()
        >>> rows[0]["loss"]
        2.5
    """

    NAMES: ClassVar[frozenset[str]] = frozenset(
        {
            *(CHECKPOINTS, METRICS, SYSTEM_LOG, PROFILE, AUTOTUNE, EVALS, LOCK),
            *(RECORD, f"{RECORD}.tmp", CONFIG, f"{CONFIG}.tmp", *SINKS),
        }
    )

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self.location = os.fspath(run)
        url = bucket_url(run)
        self.path = expanded(run) if url is None else fetch_run(url)
        self._descriptions = _Descriptions(self.path / CHECKPOINTS)

    def __str__(self) -> str:
        """Return the folder or URL, as given."""
        return self.location

    def check(self) -> None:
        """Check that the folder holds a run.

        Raises:
            RunFolderError: The folder does not exist or does not hold a run.
        """
        if not self.path.is_dir():
            what = "is a file" if self.path.exists() else "there is no such folder"
            raise RunFolderError(f"{self}: {what}; give the folder of a run")
        if not self.holds_run:
            raise RunFolderError(
                f"{self}: holds no run ({RECORD}, {METRICS} and {CHECKPOINTS}/ "
                "are missing); give the save_path of a run"
            )

    @property
    def holds_run(self) -> bool:
        """Whether the folder holds a file that only a run has."""
        names = (RECORD, METRICS, CHECKPOINTS)
        return any((self.path / name).exists() for name in names)

    @cached_property
    def record(self) -> dict[str, Any] | None:
        """Content of `run.json`: empty if it is missing, None if it is damaged."""
        path = self.path / RECORD
        return find_object(path.read_bytes()) if path.exists() else {}

    @property
    def parent(self) -> Parent | None:
        """The checkpoint from which the run started; None if `run.json` has none."""
        record = self.record or {}
        for option in ("branch_from", "init_from"):
            found: Any = record.get(option)
            try:
                is_branch = option == "branch_from"
                return Parent(
                    str(found["path"]),
                    int(found["step"]),
                    is_branch,
                    found["run_id"],
                    found["digest"],
                    _tokens(record["data"]) if is_branch else 0,
                    _counts(found["tokens_by_source"]) if is_branch else {},
                )
            except (KeyError, TypeError, ValueError, AttributeError):
                continue
        return None

    @property
    def first_step(self) -> int:
        """Step from which the run trains: that of its parent for a branch, else 0."""
        parent = self.parent
        return parent.step if parent is not None and parent.is_branch else 0

    @property
    def primary(self) -> str:
        """Name of the primary source at the last start.

        The name is `"self"` if the run gives it no name, or if the row of the start is
        damaged.
        """
        try:
            return str(self._recorded_data["state"]["sources"][0]["name"])
        except (KeyError, TypeError, IndexError):
            return PRIMARY

    @property
    def _is_of_trainer(self) -> bool:
        # A loop that writes its log by `RunLog` keeps its checkpoints itself. It writes
        # no record, and its starts have no settings.
        return (self.path / RECORD).exists() or all(
            "settings" in start.row for start in self.starts()
        )

    @property
    def _steps(self) -> list[int]:
        return self._descriptions.steps() if self._is_of_trainer else []

    def checkpoints(self) -> tuple[list[Checkpoint], list[int]]:
        """Return the undamaged checkpoints and the steps of damaged ones, ascending.

        Both are empty for a run that a `RunLog` records.
        """
        return self._checkpoints

    @cached_property
    def _checkpoints(self) -> tuple[list[Checkpoint], list[int]]:
        found = {step: self._checkpoint(step) for step in self._steps}
        whole = [checkpoint for checkpoint in found.values() if checkpoint is not None]
        return whole, [step for step in found if found[step] is None]

    @cached_property
    def saved_step(self) -> int | None:
        """Step of the newest undamaged checkpoint; None without one."""
        newest = reversed(self._steps)
        return next((step for step in newest if self._checkpoint(step)), None)

    @property
    def finished_step(self) -> int | None:
        """`saved_step`, or None if the evaluation after this step did not end.

        The next start makes this evaluation, also if all steps are done.
        """
        newest = None if self.saved_step is None else self._checkpoint(self.saved_step)
        is_owed = newest is None or newest.extra.get("evaluated") is False
        return None if is_owed else self.saved_step

    def _checkpoint(self, step: int) -> Checkpoint | None:
        """Return the description of a checkpoint; None if it is damaged."""
        try:
            description = self._descriptions.of(step)
            metrics = {name: number(v) for name, v in description.metrics.items()}
            extra = dict(description.extra or {})
        except (OSError, ValueError, TypeError):
            return None
        finite = {name: value for name, value in metrics.items() if value is not None}
        return Checkpoint(step, finite, extra, description.best)

    @property
    def total_steps(self) -> int | None:
        """Updates of the whole run, as its newest start planned; None without one."""
        starts = self.starts()
        return starts[-1].total_steps or None if starts else None

    @cached_property
    def step(self) -> int:
        """Updates done, from the newest row of the log or the newest checkpoint."""
        rows = self.newest_rows.values()
        return max([self.saved_step or 0, *(row["step"] for row in rows)])

    @property
    def status(self) -> str:
        """`running`, `complete`, `ended with an error` or `stopped`."""
        if self.is_running:
            return "running"
        # The next start continues from the newest checkpoint, not from the newest row.
        done = self.step if self.saved_step is None else self.finished_step
        total = self.total_steps
        if done is not None and total is not None and done >= total:
            return "complete"
        is_error = self.ending.get("status") == "ended with an error"
        return "ended with an error" if is_error else "stopped"

    def state(self) -> dict[str, Any] | None:
        """Return `data_state` of the run; None if no trainer began it.

        Raises:
            RunMismatchError: `run.json` is damaged or of another version, or a
                checkpoint was not written by a trainer.
            CheckpointError: All checkpoints are damaged.
        """
        if not self._is_of_trainer:
            return None
        return self._descriptions.data_state() or _begun_state(self.path)

    def data(self) -> RunData:
        """Return the sources of the run, and the data that it has read and will read.

        From the result, `roxxel_curriculum.recorded_sampler` computes every past and
        planned batch, without the program or the config that trains the run.

        Raises:
            RunFolderError: The folder holds neither `run.json` nor a checkpoint, or its
                log has no start, because the first start ended before training began.
            RunMismatchError: A file of the run is damaged or of another version.
            CheckpointError: All checkpoints are damaged.
        """
        return self._data

    @cached_property
    def _data(self) -> RunData:
        # Read the log after the checkpoint. Each start writes its row before its first
        # checkpoint, so the row is then not older than the checkpoint.
        trained = self.state()
        # The loop of another trainer keeps its checkpoints itself.
        if trained is None and not self.starts():
            raise RunFolderError(
                f"{self}: holds no run (neither {RECORD} nor a checkpoint); "
                "give the save_path of a run"
            )
        if not self.starts():
            raise RunFolderError(
                f"{self}: {METRICS} has no row of a start, which says where the "
                "corpora are and what is planned; start the run again, which writes "
                "the row before it trains"
            )
        found: Any = self._recorded_data
        sources, state = found.get("sources"), found.get("state")
        why = "" if isinstance(sources, dict) else ": it has no paths of its sources"
        try:
            state = checked_state(state)
        except StateMismatch as error:
            why = f": of its state, {error.differences[0]}"
        if why:
            raise RunMismatchError(
                f"{self.path / METRICS}: the row of the newest start does not say "
                f"which data it reads{why}; restore the file, or start the run again"
            )
        return RunData(cast("dict[str, Any]", sources), state, trained or state)

    @property
    def _recorded_data(self) -> Mapping[str, Any]:
        """The newest start's record of its data; empty if it is damaged."""
        starts = self.starts()
        found = starts[-1].row.get("data") if starts else None
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    @property
    def settings(self) -> Mapping[str, Any]:
        """The trainer's settings at the newest start that trained; else empty."""
        found = self.newest_start.get("settings")
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

    def config_text(self, step: int | None = None) -> str | None:
        """Return the text of the config that the run used; None if it had none.

        Args:
            step: Number of an update, from 1: return the config that it used. None for
                the newest config.
        """
        texts = [
            text
            for row in self._starts_of(step)
            if isinstance(text := row.get("config"), str)
        ]
        return texts[-1] if texts else None

    def start_of(self, step: int | None = None) -> Mapping[str, Any]:
        """Return the row of the start that trained a step; empty without one.

        Args:
            step: As for `config_text`.
        """
        return next(reversed(self._starts_of(step)), {})

    def _starts_of(self, step: int | None) -> list[Mapping[str, Any]]:
        """Return the rows of the starts whose settings reached a step, in order."""
        return [
            start.row
            for start in self.starts()
            if not start.is_idle
            and (step is None or (start.is_part and start.step < max(1, step)))
        ]

    @property
    def made_by(self) -> str | None:
        """The model's attribute `made_by`: how the model was made; None without one.

        For the models of `roxxel.models` it holds the name of their function and its
        arguments, as JSON. So commands can make the model again without your program.
        """
        texts = [start.row.get("made_by") for start in self.starts()]
        return next((each for each in reversed(texts) if isinstance(each, str)), None)

    @property
    def newest_start(self) -> Mapping[str, Any]:
        """The row of the newest start that trained; empty without one.

        It has the settings of the trainer, the command, the versions of libraries, and
        the devices and processes.
        """
        return self.start_of()

    def rows(self) -> tuple[list[dict[str, Any]], int]:
        """Return the rows of the run's result, and the number of damaged lines.

        Rows of `metrics.jsonl` that a start gave up are left out: the run was killed,
        and repeated these steps. Rows about starts and endings are left out too; see
        `starts`. A last line without a newline does not count as damaged: the trainer
        is still writing the line, or a crash has left it incomplete.
        """
        read = list(self.each_row())
        rows = [row for row in read if row is not None]
        return rows, len(read) - len(rows)

    def each_row(self) -> Iterator[dict[str, Any] | None]:
        """Yield the rows that `rows` returns, one at a time.

        A damaged line is None. Use this method for a long log: a row takes 4 kB of
        memory, so 10^6 of them at once take 4 GB.
        """
        for line in self._followed.lines(self.path / METRICS):
            row = _row(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n"):
                yield None

    @cached_property
    def columns(self) -> Columns:
        """The numbers of the run's result, each field as an array over the rows."""
        return read_columns(self.each_row())

    @cached_property
    def newest_rows(self) -> Mapping[str, dict[str, Any]]:
        """The newest undamaged row of training, `"train"`, and of evaluation, `"eval"`.

        A kind without a row in the log's last mebibyte is missing.
        """
        if "columns" in vars(self):
            return self.columns.newest
        newest: dict[str, dict[str, Any]] = {}
        for line in self._followed.newest_lines(self.path / METRICS, 2**20):
            row = _row(line)
            if row is not None and row["kind"] in _MEASURING:
                newest.setdefault(row["kind"], row)
        return newest

    def saves(self) -> dict[int, str]:
        """Return the logged digest of the state at each save, by step."""
        found: dict[int, str] = {}
        for line in self._followed.saves:
            row = find_object(line) or {}
            if is_count(row.get("step")) and isinstance(row.get(STATE_DIGEST), str):
                found[row["step"]] = row[STATE_DIGEST]
        return found

    def log(self) -> list[LogEntry]:
        """Return the entries of `system.log`, each with its traceback."""
        entries: list[LogEntry] = []
        path = self.path / SYSTEM_LOG
        content = path.read_text("utf-8", "replace") if path.exists() else ""
        for line in content.splitlines():
            found = _LOG_LINE.fullmatch(line)
            if found:
                entries.append(LogEntry(*found.groups()))
            elif entries:
                last = entries[-1]
                entries[-1] = replace(last, text=f"{last.text}\n{line}")
        return entries

    def starts(self) -> Sequence[RunStart]:
        """Return the starts of the run, resumes included."""
        return self._followed.starts

    @property
    def ending(self) -> Mapping[str, Any]:
        """How the newest start ended; empty while it trains, and after a kill."""
        return self._followed.ending

    def goodput(self, until: float | None = None) -> Goodput:
        """Return where the wall time of the run went.

        Args:
            until: Seconds since the epoch at which the last start ended; None stands
                for its newest row.
        """
        return goodput(self.starts(), self.columns, until)

    @cached_property
    def _followed(self) -> Followed:
        return follow(self.path / METRICS)

    @property
    def is_running(self) -> bool:
        """Whether a process is training in the folder."""
        path = self.path / LOCK
        if not path.exists():
            return False
        with path.open("rb") as lock:
            return try_lock(lock.fileno()) is False


def data_state(
    path: str | os.PathLike[str], *, needs_checkpoint: bool = False
) -> dict[str, Any]:
    """Return the recorded data state of a run, from which to recompute its batches.

    The state holds the seed, the versions of the corpora, the curriculum's `longest`,
    and the trained phases. With this state a curriculum returns the batches that the
    run has read, even if the curriculum was edited since::

        sampler = curriculum.sampler(state=data_state("run"))

    Args:
        path: Folder of the run, its `save_path`, or the folder of its checkpoints. For
            a run in a bucket, the URL of the run. A suffix `@STEP` selects a step.
        needs_checkpoint: Whether a run without a checkpoint is an error. A branch can
            only start from a checkpoint.

    Returns:
        The result of `Sampler.state` at the selected checkpoint; without `@STEP`, at
        the newest sound checkpoint, or at the start of a run that has none. Later steps
        follow the current curriculum.

    Raises:
        FileNotFoundError: The folder does not hold a run, lacks the selected step, or
            has no checkpoint although `needs_checkpoint` is True.
        RunMismatchError: `run.json` is damaged or of another version, or a checkpoint
            was not written by a trainer.
        roxxel_ckpt.CheckpointError: All checkpoints are damaged.
    """
    found = parse_reference(os.fspath(path))
    if isinstance(found.path, str):
        found = Reference(fetch_run(found.path), found.step)
    state = _Descriptions(found.checkpoints).data_state(found.step)
    if state is not None:
        return state
    state = _begun_state(Path(found.path))
    if state is None:
        raise FileNotFoundError(
            f"{path}: holds no run (neither {RECORD} nor a checkpoint); "
            "give the save_path of a run"
        )
    if needs_checkpoint:
        raise FileNotFoundError(
            f"{path}: holds no checkpoint; "
            "give the folder of a run that has saved a checkpoint"
        )
    return state


def _begun_state(folder: Path) -> dict[str, Any] | None:
    """Return the data state with which a run began; None without `run.json`."""
    record = find_record(folder)
    return None if record is None else record["data"]


class _Descriptions:
    """The descriptions of the checkpoints in a folder; each is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[int, Description] = {}

    def steps(self) -> list[int]:
        """Return the steps that the folder holds now, damaged ones too, ascending."""
        folder = self.folder
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def of(self, step: int) -> Description:
        """Return the description of a step; raises the errors of `read_description`."""
        if step not in self._read:
            self._read[step] = read_description(self.folder / str(step))
        return self._read[step]

    def data_state(self, step: int | None = None) -> dict[str, Any] | None:
        """Return the data state at a step, or at the newest sound checkpoint, or None.

        Raises:
            CheckpointNotFoundError: The folder has no such step.
        """
        steps = self.steps()
        if step is not None and step not in steps:
            held = f"steps {', '.join(map(str, steps))}" if steps else "no step"
            raise CheckpointNotFoundError(
                f"{self.folder}: has no step {step}; it holds {held}"
            )
        damage: CheckpointDamagedError | None = None
        for at in reversed(steps) if step is None else [step]:
            try:
                extra = self.of(at).extra
            except CheckpointDamagedError as error:
                damage = damage or error
                continue
            if not extra or "data" not in extra:
                raise RunMismatchError(
                    f"{self.folder / str(at)}: has no data state, so a trainer did "
                    "not write this checkpoint; give the folder of a run"
                )
            return extra["data"]
        if damage is not None:
            raise damage
        return None


def _counts(value: Any) -> dict[str, int]:
    """Return the counts of a mapping by name; empty for another value."""
    if not isinstance(value, dict):
        return {}
    found = cast("dict[str, Any]", value)
    if all(map(is_count, found.values())):
        return found
    return {name: count for name, count in found.items() if is_count(count)}


def _tokens(state: Mapping[str, Any]) -> int:
    """Return the number of tokens in the trained steps of a data state."""
    phases = state["phases"]
    stops = [*(phase["start"] for phase in phases[1:]), state["step"]]
    return sum(
        (stop - phase["start"]) * phase["batch_size"] * phase["seq_len"]
        for phase, stop in zip(phases, stops, strict=True)
    )


_decode = msgspec.json.Decoder().decode


def _object_in(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if there is none.

    msgspec reads a row in a third of the time, but does not limit the memory that a
    line needs.
    """
    if len(line) > _LONGEST_ROW:
        return find_object(line)
    try:
        found = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return find_object(line)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _row(line: bytes) -> dict[str, Any] | None:
    """Parse a row; return None if it is damaged.

    If only the phase or the token counts are invalid, the row lacks these values.
    """
    fields = _object_in(line)
    if fields is None:
        return None
    if not is_count(fields.get("step")) or not isinstance(fields.get("kind"), str):
        return None
    if "phase" in fields and not is_count(fields["phase"]):
        del fields["phase"]
    tokens = fields.get("tokens_by_source")
    if isinstance(tokens, dict):
        fields["tokens_by_source"] = _counts(tokens)
    else:
        fields.pop("tokens_by_source", None)
    return fields
