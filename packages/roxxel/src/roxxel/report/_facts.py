"""What is known of a run, from the files in its folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from roxxel_ckpt import default_best_metric

from roxxel.report._series import Series, thinned
from roxxel.run_files import (
    LogEntry,
    check_run,
    is_count,
    is_running,
    newest_state,
    number,
    read_checkpoints,
    read_log,
    read_record,
    read_rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from roxxel.config import RunConfig
    from roxxel.run_files import Checkpoint

Rows = list[dict[str, Any]]

_START = re.compile(
    r"starts: (\d+) steps|resumed from step \d+ of (\d+)|already complete: \d+ of (\d+)"
)
_NOT_DRAWN = {
    *("kind", "step", "time", "phase", "loss", "loss_mean", "tokens", "value"),
    *("tokens_by_source", "tokens_per_s", "wait_share", "wait_s", "text"),
    *("step_s", "compile_s", "eval_s", "save_s"),
}


@dataclass(frozen=True)
class PhaseFacts:
    """One phase as far as it was trained.

    Attributes:
        index: From 0.
        start: First step.
        shape: Such as `8 x 257`; empty where no checkpoint says it.
        shares: Share of tokens by the weights, by source; empty likewise.
        tokens: Tokens that each source gave in it.
    """

    index: int
    start: int
    shape: str
    shares: Mapping[str, float]
    tokens: Mapping[str, int]


@dataclass(frozen=True)
class RunFacts:
    """Everything that the page says.

    Attributes:
        name: Name of the run's folder.
        status: `complete`, `running`, `stopped` or `ended with an error`.
        step: Updates done, by the newest row or checkpoint.
        total_steps: Updates in all; None where the log does not say it.
        tokens: Tokens delivered.
        seconds: Seconds of training, without evaluations, compilations and saves.
        apart: Seconds of each of those, by name.
        wait_share: Share of the training in which the loop waited for data.
        first_time: When the first row was written, ISO 8601; empty without rows.
        last_time: When the last one was.
        seed: Seed of the order of the data; None without `run.json`.
        versions: Of the libraries that the run began with.
        train: The rows of training, thinned, by field.
        evaluations: The rows of evaluation by field.
        tokens_by_source: Tokens delivered so far, by source.
        phases: As far as trained.
        checkpoints: Those kept, oldest first.
        best_metric: Name of the value whose lowest checkpoint is the best one.
        best_step: Its step.
        starts: How often the run was started.
        alerts: Warnings and errors of the log, oldest first.
        last_text: What `eval_fn` wrote last, if it writes text.
        num_damaged: Lines of `metrics.jsonl` that are no rows.
        plan: The plan as text; empty where it cannot be made.
    """

    name: str
    status: str
    step: int
    total_steps: int | None
    tokens: int
    seconds: float
    apart: Mapping[str, float]
    wait_share: float
    first_time: str
    last_time: str
    seed: int | None
    versions: Mapping[str, str]
    train: Mapping[str, Series]
    evaluations: Mapping[str, Series]
    tokens_by_source: Mapping[str, Series]
    phases: tuple[PhaseFacts, ...]
    checkpoints: tuple[Checkpoint, ...]
    best_metric: str
    best_step: int | None
    starts: int
    alerts: tuple[LogEntry, ...]
    last_text: str
    num_damaged: int
    plan: str

    @property
    def headline(self) -> str:
        """The run in one line."""
        total = "" if self.total_steps is None else f" of {self.total_steps:,}"
        loss = self.train["loss"].last if "loss" in self.train else None
        shown = "" if loss is None else f", loss {loss:.4f}"
        return f"{self.status}, {self.step:,}{total} steps{shown}"

    @property
    def other_fields(self) -> list[str]:
        """Numbers of training that have no picture of their own."""
        return [name for name in self.train if name not in _NOT_DRAWN]


def read_facts(folder: Path) -> RunFacts:
    """Read what the folder of a run says.

    Raises:
        RunFolderError: It holds no run.
        OSError: It cannot be read.
    """
    check_run(folder)
    rows, num_damaged = read_rows(folder)
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    entries = read_log(folder)
    record = read_record(folder)
    seed, versions = record.get("seed"), record.get("versions")
    checkpoints = read_checkpoints(folder)
    config = _config(folder)
    best_metric = config and config.trainer.best_metric
    if best_metric is None:
        best_metric = default_best_metric(c.metrics for c in checkpoints)
    step = max([0, *(r["step"] for r in rows), *(c.step for c in checkpoints)])
    starts = [found for e in entries if (found := _START.match(e.text))]
    total_steps = _total_steps(starts)
    timed = [
        _timing(row, before) for row, before in zip(train, [None, *train], strict=False)
    ]
    seconds = sum(row_s for row_s, _ in timed)
    times = [str(row["time"]) for row in rows if "time" in row]
    texts = [row["text"] for row in evaluations if isinstance(row.get("text"), str)]
    return RunFacts(
        name=folder.resolve().name,
        status=_status(folder, step, total_steps, entries),
        step=step,
        total_steps=total_steps,
        tokens=int(_last(train, "tokens") or 0),
        seconds=seconds,
        apart=_apart(rows),
        wait_share=sum(wait_s for _, wait_s in timed) / seconds if seconds else 0.0,
        first_time=times[0] if times else "",
        last_time=times[-1] if times else "",
        seed=seed if is_count(seed) else None,
        versions=cast("dict[str, Any]", versions) if isinstance(versions, dict) else {},
        train=_columns(train),
        evaluations=_columns(evaluations),
        tokens_by_source=_tokens_columns(train),
        phases=tuple(_phases(train, checkpoints)),
        checkpoints=tuple(checkpoints),
        best_metric=best_metric,
        best_step=_best(checkpoints, best_metric),
        starts=len(starts),
        alerts=tuple(e for e in entries if e.level not in {"INFO", "DEBUG"}),
        last_text=texts[-1] if texts else "",
        num_damaged=num_damaged,
        plan="" if config is None else _plan(config, newest_state(folder)),
    )


def _status(
    folder: Path, step: int, total_steps: int | None, entries: list[LogEntry]
) -> str:
    if is_running(folder):
        return "running"
    if total_steps is not None and step >= total_steps:
        return "complete"
    if entries and entries[-1].level == "ERROR":
        return "ended with an error"
    return "stopped"


def _total_steps(starts: list[re.Match[str]]) -> int | None:
    """Return the steps of the run, as the newest start says them."""
    return int(starts[-1][starts[-1].lastindex or 0]) if starts else None


def _timing(
    row: Mapping[str, Any], before: Mapping[str, Any] | None
) -> tuple[float, float]:
    """Return the seconds of training since the row before, and those of waiting."""
    steps = row["step"] - (0 if before is None else before["step"])
    return max(steps, 1) * (number(row.get("step_s")) or 0.0), (
        number(row.get("wait_s")) or 0.0
    )


def _apart(rows: Rows) -> dict[str, float]:
    names = {"compile_s": "compiling", "eval_s": "evaluating", "save_s": "saving"}
    sums = {
        words: sum(number(row.get(field)) or 0.0 for row in rows)
        for field, words in names.items()
    }
    return {words: seconds for words, seconds in sums.items() if seconds}


def _last(rows: Rows, field: str) -> float | None:
    return next((number(row[field]) for row in reversed(rows) if field in row), None)


def _tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    by_source = row.get("tokens_by_source")
    return cast("dict[str, Any]", by_source) if isinstance(by_source, dict) else {}


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return the numbers of rows by field, over the steps."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float | None]] = {}
    for row in rows:
        for name, value in row.items():
            if name == "step" or isinstance(value, bool):
                continue
            # NaN and infinities stand there as text, and are a gap in the line.
            is_gap = value in ("nan", "inf", "-inf")
            if is_gap or isinstance(value, int | float):
                steps.setdefault(name, []).append(row["step"])
                values.setdefault(name, []).append(number(value))
    return {name: thinned(Series(steps[name], values[name])) for name in steps}


def _tokens_columns(train: Rows) -> dict[str, Series]:
    """Return the tokens of each source so far; every source at the same steps."""
    names = {name: 0 for row in train for name in _tokens(row)}
    rows = [{"step": row["step"], **names, **_tokens(row)} for row in train]
    return _columns(rows)


def _phases(train: Rows, checkpoints: list[Checkpoint]) -> Iterable[PhaseFacts]:
    """Yield the phases, by the newest checkpoint and by the rows."""
    recorded = _recorded_phases(checkpoints)
    before: dict[str, int] = {}
    last_step = 0
    found = {row["phase"]: row for row in train if isinstance(row.get("phase"), int)}
    for index in sorted({*found, *recorded}):
        row = found.get(index, {})
        so_far = _tokens(row) if row else before
        given = {name: count - before.get(name, 0) for name, count in so_far.items()}
        entry = recorded.get(index, {})
        weights = entry.get("weights", {})
        total = sum(weights.values())
        yield PhaseFacts(
            index=index,
            start=entry.get("start", last_step),
            shape=f"{entry['batch_size']} x {entry['seq_len']}" if entry else "",
            shares={name: weight / total for name, weight in weights.items()},
            tokens=given,
        )
        before = so_far
        last_step = row.get("step", last_step)


def _recorded_phases(checkpoints: list[Checkpoint]) -> dict[int, dict[str, Any]]:
    """Return the phases that the newest checkpoint describes, by declared index."""
    data = checkpoints[-1].extra.get("data") if checkpoints else None
    entries = (
        cast("dict[str, Any]", data).get("phases") if isinstance(data, dict) else []
    )
    if not isinstance(entries, list) or not all(map(_is_phase, entries)):
        return {}
    found: dict[int, dict[str, Any]] = {}
    for entry in cast("list[dict[str, Any]]", entries):
        if entry["edited"] and found:
            # The same phase goes on with other weights.
            index = max(found)
            found[index] = {**entry, "start": found[index]["start"]}
        else:
            found[len(found)] = entry
    return found


def _is_phase(entry: Any) -> bool:
    """Return whether this is a phase as `Sampler.state` describes it."""
    try:
        counts = [entry["start"], entry["batch_size"], entry["seq_len"]]
        weights = list(entry["weights"].values())
        return "edited" in entry and sum(weights) > 0 and all(map(is_count, counts))
    except (AttributeError, KeyError, TypeError):
        return False


def _best(checkpoints: list[Checkpoint], metric: str) -> int | None:
    """Return the step of the lowest value; of equal ones the newer."""
    having = [c for c in checkpoints if metric in c.metrics]
    best = min(having, key=lambda c: (c.metrics[metric], -c.step), default=None)
    return None if best is None else best.step


def _config(folder: Path) -> RunConfig | None:
    """Return the config that the run was started with last, if it can be read."""
    from roxxel.config import load_config

    try:
        return load_config(folder / "config.toml")
    except (OSError, ValueError):
        return None


def _plan(config: RunConfig, state: dict[str, Any] | None) -> str:
    """Return the plan of a run as text; empty if its corpora cannot be opened.

    Args:
        config: What the run was started with.
        state: State of its data, which names the versions of the corpora.
    """
    from roxxel.config import open_curriculum

    try:
        return str(open_curriculum(config).plan(config.seed, state))
    except (OSError, ValueError):
        return ""
