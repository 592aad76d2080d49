"""Reads the facts of a run from the files in its folder."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from roxxel_ckpt import best_rule
from roxxel_train import RunFolder
from roxxel_train.run_folder import is_count, number

from roxxel.report._phases import PhaseFacts, trained_phases
from roxxel.report._series import (
    Clock,
    Series,
    at,
    clock_of,
    points_to_draw,
    thinned,
)
from roxxel.report._spikes import Spike, find_spikes
from roxxel.run_status import starts_of, status_of, total_steps_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from roxxel_train.goodput import Goodput
    from roxxel_train.run_folder import Checkpoint, LogEntry, Parent

    from roxxel.config import RunConfig

Rows = list[dict[str, Any]]

_LOSS_OF = "loss/"
"""Prefix of fields: in a training row, `loss/web` is the loss of source `web`."""

_NOT_DRAWN = {
    *("kind", "step", "time", "phase", "loss", "loss_mean", "tokens", "value"),
    "digest_from",
    *("tokens_by_source", "tokens_per_s", "wait_share", "wait_s", "text"),
    *("step_s", "compile_s", "eval_s", "save_s"),
}


@dataclass(frozen=True)
class RunFacts:
    """Everything that the page shows.

    Attributes:
        name: Name of the run's folder.
        location: The folder or URL of the run, as the user gave it.
        status: `complete`, `running`, `stopped` or `ended with an error`.
        step: Updates done, from the newest row or checkpoint.
        total_steps: Updates of the whole run; None if the log does not record them.
        tokens: Tokens delivered; in a branch, the parent's tokens are included.
        seconds: Seconds of training, without evaluations, compilations and saves.
        goodput: Where the wall time of all starts went.
        apart: Seconds of evaluating, compiling and saving, by name.
        wait_share: Share of `seconds` in which the loop waited for data.
        first_time: Time of the first row, ISO 8601; empty without rows.
        last_time: Time of the last row, ISO 8601; empty without rows.
        seed: Seed of the data order; None without `run.json`.
        parent: The checkpoint of another run from which the run started, if any.
        versions: Versions of the libraries that the run began with.
        command: Command line that began the run; empty if not recorded.
        devices: Devices on which the run began; empty if not recorded.
        config: Text of the config that the run used last; empty without a config.
        train: Values over the steps, by field of the training rows; a long series is
            thinned.
        evaluations: Values over the steps, by field of the evaluation rows.
        clock: Tokens and training time over the steps.
        evaluated_steps: Steps of the evaluations, ascending.
        tokens_by_source: Tokens delivered so far, by source.
        shares: Share of the tokens between one row and the next, by source.
        planned_shares: The shares that the weights prescribe, in the form of `shares`.
        phases: The trained part of each phase.
        spikes: Spikes of the loss, by step.
        checkpoints: The undamaged checkpoints in the folder, oldest first.
        best_metric: Name of the metric that ranks checkpoints.
        best_step: Step of the best checkpoint; None if no checkpoint has the metric.
        starts: Number of starts in the log, including resumes.
        alerts: Warnings and errors of the log, oldest first.
        last_text: The last text that `eval_fn` returned; empty without a text.
        num_damaged: Damaged lines of `metrics.jsonl`.
        damaged: Paths of damaged files and checkpoints, relative to the folder.
        plan: The plan as text; empty if the report cannot compute the plan.

    >>> from pathlib import Path
    >>> row = '{"kind": "train", "step": 3, "loss": 2.5}'
    >>> _ = Path("metrics.jsonl").write_text(row)
    >>> read_facts(Path()).headline
    'stopped, 3 steps, loss 2.5000'
    """

    name: str
    location: str
    status: str
    step: int
    total_steps: int | None
    tokens: int
    seconds: float
    goodput: Goodput
    apart: Mapping[str, float]
    wait_share: float
    first_time: str
    last_time: str
    seed: int | None
    parent: Parent | None
    versions: Mapping[str, str]
    command: str
    devices: str
    config: str
    train: Mapping[str, Series]
    evaluations: Mapping[str, Series]
    clock: Clock
    evaluated_steps: tuple[int, ...]
    tokens_by_source: Mapping[str, Series]
    shares: Mapping[str, Series]
    planned_shares: Mapping[str, Series]
    phases: tuple[PhaseFacts, ...]
    spikes: tuple[Spike, ...]
    checkpoints: tuple[Checkpoint, ...]
    best_metric: str
    best_step: int | None
    starts: int
    alerts: tuple[LogEntry, ...]
    last_text: str
    num_damaged: int
    damaged: tuple[str, ...]
    plan: str

    @property
    def headline(self) -> str:
        """Status, steps and loss of the run in one line."""
        total = "" if self.total_steps is None else f" of {self.total_steps:,}"
        loss = self.train["loss"].last if "loss" in self.train else None
        shown = "" if loss is None else f", loss {loss:.4f}"
        return f"{self.status}, {self.step:,}{total} steps{shown}"

    @property
    def first_step(self) -> int:
        """The first step: in a branch the step of the parent's checkpoint, else 0."""
        return _first_step(self.parent)

    @property
    def first_tokens(self) -> int:
        """Tokens that a parent has read before the first step."""
        return 0 if self.parent is None else self.parent.tokens

    @property
    def rate(self) -> float:
        """Tokens a second on average, without the tokens that a parent has read."""
        new = max(0, self.tokens - self.first_tokens)
        return new / self.seconds if self.seconds else 0.0

    @property
    def other_fields(self) -> list[str]:
        """Fields of `train` that no fixed chart of the page shows."""
        return [
            name
            for name in self.train
            if name not in _NOT_DRAWN and not self._is_loss_of_source(name)
        ]

    @property
    def losses_by_source(self) -> dict[str, Series]:
        """Mean loss of each source over the steps, by source."""
        return {
            name.removeprefix(_LOSS_OF): series
            for name, series in self.train.items()
            if self._is_loss_of_source(name)
        }

    def _is_loss_of_source(self, name: str) -> bool:
        source = name.removeprefix(_LOSS_OF)
        return name.startswith(_LOSS_OF) and source in self.tokens_by_source


def read_facts(run: RunFolder | Path | str) -> RunFacts:
    """Read the facts of a run from its folder.

    Args:
        run: The run, or its folder or URL. Commands on the page name it in this form.

    Raises:
        RunFolderError: The folder holds no run.
        OSError: The folder cannot be read.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    run.check()
    folder = run.path
    rows, num_damaged = run.rows()
    train = [row for row in rows if row["kind"] == "train"]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    entries = run.log()
    record = run.record
    began = record or {}
    settings, versions = began.get("settings"), began.get("versions")
    known = cast("dict[str, Any]", settings) if isinstance(settings, dict) else {}
    seed = known.get("seed")
    checkpoints, damaged_steps = run.checkpoints()
    damaged = ["run.json"] if record is None else []
    damaged += [f"checkpoints/{step}" for step in damaged_steps]
    config = _config(folder)
    best_metric, best_step = _best(checkpoints, config)
    step = max([0, *(r["step"] for r in rows), *(c.step for c in checkpoints)])
    starts = starts_of(entries)
    total_steps = total_steps_of(starts)
    parent = run.parent
    first_step = _first_step(parent)
    before = _tokens_before(parent)
    clock = clock_of(train, first_step, 0 if parent is None else parent.tokens)
    seconds = clock.seconds[-1] if clock.seconds else 0.0
    waited = sum(_number(row, "wait_s") for row in train)
    times = [str(row["time"]) for row in rows if "time" in row]
    texts = [row["text"] for row in evaluations if isinstance(row.get("text"), str)]
    return RunFacts(
        name=folder.resolve().name,
        location=run.location,
        status=status_of(run, step, total_steps, entries),
        step=step,
        total_steps=total_steps,
        tokens=int(
            next((_number(r, "tokens") for r in train[::-1] if "tokens" in r), 0)
        ),
        seconds=seconds,
        goodput=run.goodput(),
        apart=_apart(rows),
        wait_share=waited / seconds if seconds else 0.0,
        first_time=times[0] if times else "",
        last_time=times[-1] if times else "",
        seed=seed if is_count(seed) else None,
        parent=parent,
        versions=cast("dict[str, Any]", versions) if isinstance(versions, dict) else {},
        command=_command(began.get("command")),
        devices=_devices(began.get("devices"), began.get("processes")),
        config=_config_text(folder),
        train=_columns(train),
        evaluations=_columns(evaluations),
        clock=clock,
        evaluated_steps=tuple(sorted({row["step"] for row in evaluations})),
        tokens_by_source=_tokens_columns(train, first_step, before),
        shares=_shares(train, "tokens_by_source", before),
        planned_shares=_shares(
            train, "planned_tokens_by_source", None if first_step else {}
        ),
        spikes=tuple(find_spikes(train)),
        phases=tuple(
            trained_phases(train, checkpoints, first_step, before, run.primary)
        ),
        checkpoints=tuple(checkpoints),
        best_metric=best_metric,
        best_step=best_step,
        starts=len(starts),
        alerts=tuple(e for e in entries if e.level not in {"INFO", "DEBUG"}),
        last_text=texts[-1] if texts else "",
        num_damaged=num_damaged,
        damaged=tuple(damaged),
        plan="" if config is None else _plan(config, run),
    )


def _first_step(parent: Parent | None) -> int:
    return parent.step if parent is not None and parent.is_branch else 0


def _tokens_before(parent: Parent | None) -> Mapping[str, int] | None:
    """Return the tokens by source before the first step; None if not recorded."""
    if parent is None or not parent.is_branch:
        return {}
    return parent.tokens_by_source or None


def _number(row: Mapping[str, Any], field: str) -> float:
    return number(row.get(field)) or 0.0


def _apart(rows: Rows) -> dict[str, float]:
    names = {"compile_s": "compiling", "eval_s": "evaluating", "save_s": "saving"}
    sums = {
        words: sum(_number(row, field) for row in rows)
        for field, words in names.items()
    }
    return {words: seconds for words, seconds in sums.items() if seconds}


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return the numbers of rows by field, over the steps."""
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float | None]] = {}
    for row in rows:
        for name, value in row.items():
            if name == "step" or isinstance(value, bool):
                continue
            # The log has NaN and infinities as text; the chart shows a gap for each.
            is_gap = value in ("nan", "inf", "-inf")
            if is_gap or isinstance(value, int | float):
                steps.setdefault(name, []).append(row["step"])
                values.setdefault(name, []).append(number(value))
    return {name: thinned(Series(steps[name], values[name])) for name in steps}


def _tokens_columns(
    train: Rows, first_step: int, before: Mapping[str, int] | None
) -> dict[str, Series]:
    """Return the cumulative tokens by source; all series have the same steps.

    The series begin with 0 tokens at step 0, and in a branch with the tokens of its
    parent, if these are recorded.
    """
    counts: list[tuple[int, Mapping[str, int]]] = [
        (row["step"], row.get("tokens_by_source", {})) for row in train
    ]
    if counts and (before or not first_step):
        counts.insert(0, (first_step, before or {}))
    steps = [step for step, _ in counts]
    names = dict.fromkeys(name for _, found in counts for name in found)
    total = Series(steps, [float(sum(found.values())) for _, found in counts])
    kept = points_to_draw(total)
    return {
        name: at(
            Series(steps, [float(found.get(name, 0)) for _, found in counts]), kept
        )
        for name in names
    }


def _shares(
    train: Rows, field: str, before: Mapping[str, int] | None
) -> dict[str, Series]:
    """Return the share of each source in the tokens since the previous row.

    `before` has the tokens before the first row. If `before` is None, the first row
    has no share: in a branch, the row also counts the tokens of the parent.
    """
    rows: list[dict[str, Any]] = []
    for row in train:
        counts = row.get(field)
        if not isinstance(counts, dict):
            continue
        so_far = {
            n: c for n, c in cast("dict[str, Any]", counts).items() if is_count(c)
        }
        known = so_far if before is None else before
        new = {name: count - known.get(name, 0) for name, count in so_far.items()}
        total = sum(new.values())
        if total > 0:
            shares = {name: count / total for name, count in new.items()}
            rows.append({"step": row["step"], **shares})
        before = so_far
    return _columns(rows)


def _best(
    checkpoints: list[Checkpoint], config: RunConfig | None
) -> tuple[str, int | None]:
    """Return the metric that ranks checkpoints, and the step of the best checkpoint."""
    recorded = {c.step: c.best for c in checkpoints}
    metrics = {c.step: c.metrics for c in checkpoints}
    metric = None
    if config is not None and not any(recorded.values()):
        metric = config.trainer.get("best_metric")
    rule = best_rule(recorded, metric)
    return rule.metric_of(metrics.values()), next(iter(rule.ranked(metrics)), None)


def _config(folder: Path) -> RunConfig | None:
    """Return the config in `config.toml`; None if the file is missing or invalid."""
    from roxxel.config import load_config

    try:
        return load_config(folder / "config.toml")
    except (OSError, ValueError):
        return None


def _config_text(folder: Path) -> str:
    """Return the text of the config that a run used last; empty without a config."""
    from roxxel.config import newest_config

    try:
        path = newest_config(folder)
        return "" if path is None else path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _command(words: Any) -> str:
    """Return a command line as text; an installed command goes by its name alone."""
    if not isinstance(words, list) or not words:
        return ""
    program, *others = map(str, cast("list[Any]", words))
    path = PurePath(program)
    is_installed = path.is_absolute() and path.parent.name == "bin"
    return shlex.join([path.name if is_installed else program, *others])


def _devices(kinds: Any, processes: Any) -> str:
    """Return the devices of a run as text, such as `8 x TPU v4 in 2 processes`."""
    if not isinstance(kinds, dict):
        return ""
    counts = cast("dict[str, Any]", kinds).items()
    text = ", ".join(f"{count} x {kind}" for kind, count in counts if is_count(count))
    several = is_count(processes) and processes > 1
    return f"{text} in {processes} processes" if text and several else text


def _plan(config: RunConfig, run: RunFolder) -> str:
    """Return the plan of a run as text; empty if corpora or state are unreadable."""
    from roxxel.config import open_curriculum

    try:
        return str(open_curriculum(config).plan(config.seed, run.state()))
    except (OSError, ValueError):
        return ""
