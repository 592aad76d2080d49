"""Reads the facts of a run from the files in its folder."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from roxxel_ckpt import BestRule, CheckpointError
from roxxel_curriculum.run_log import LOSS_OF
from roxxel_curriculum.sampler import recorded_plan
from roxxel_store.records import find_object, is_count
from roxxel_train import RunFolder

from roxxel.evaluate.results import evaluations_of
from roxxel.report._series import (
    Clock,
    Series,
    clock_of,
    indices_to_draw,
    series_of,
    thinned,
)
from roxxel.report._spikes import Spike, find_spikes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from roxxel_train.columns import Table
    from roxxel_train.goodput import Goodput
    from roxxel_train.run_folder import Checkpoint, LogEntry, Parent

_NOT_DRAWN = {
    *("kind", "step", "time", "phase", "loss", "loss_mean", "tokens", "value"),
    *("tokens_by_source", "tokens_per_s", "wait_share", "wait_s", "text"),
    *("step_s", "compile_s", "eval_s", "save_s", "gc_s"),
}


@dataclass(frozen=True)
class PhaseFacts:
    """The trained part of one phase."""

    index: int
    start: int
    shape: str  # such as `8 x 257`; empty if no checkpoint records the phase
    # Planned share of each source. Empty if no checkpoint records the phase.
    shares: Mapping[str, float]
    tokens: Mapping[str, int]  # tokens read in this phase, by source


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
        wait_share: Share of `seconds` in which the loop waited for data.
        first_time: Time of the first row, ISO 8601; empty without rows.
        last_time: Time of the last row, ISO 8601; empty without rows.
        seed: Seed of the data order; None if the log does not record it.
        parent: The checkpoint of another run from which the run started, if any.
        first_step: The first step: in a branch the step of the parent's checkpoint,
            else 0.
        first_tokens: Tokens that a parent has read before the first step.
        versions: Versions of the libraries and of the program at the newest start.
        command: Command line of the newest start; empty if not recorded.
        devices: Devices of the newest start; empty if not recorded.
        model: The function that made the model, and its preset; empty if unknown.
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
        benchmarks: Results of `roxxel eval`: by step, then by task.
        best_metric: Name of the metric that ranks checkpoints.
        best_step: Step of the best checkpoint; None if no checkpoint has the metric.
        starts: Number of starts in the log, including resumes.
        alerts: Warnings and errors of the log, oldest first.
        last_text: The last text that `eval_fn` returned; empty without a text.
        num_damaged: Damaged lines of `metrics.jsonl`.
        damaged: Paths of damaged files and checkpoints, relative to the folder.
        plan: The plan of the newest start as text; empty if its row is damaged.

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
    wait_share: float
    first_time: str
    last_time: str
    seed: int | None
    parent: Parent | None
    first_step: int
    first_tokens: int
    versions: Mapping[str, str]
    command: str
    devices: str
    model: str
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
    benchmarks: Mapping[int, Mapping[str, Any]]
    best_metric: str
    best_step: int | None
    starts: int
    alerts: tuple[LogEntry, ...]
    last_text: str
    num_damaged: int
    damaged: tuple[str, ...]
    plan: str

    @property
    def steps_done(self) -> str:
        """The steps that are done as text, such as `300 of 1,000`."""
        total = self.total_steps
        return f"{self.step:,}" + ("" if total is None else f" of {total:,}")

    @property
    def last_loss(self) -> float | None:
        """The loss of the newest row; None if it is not finite or not logged."""
        return self.train["loss"].last if "loss" in self.train else None

    @property
    def headline(self) -> str:
        """Status, steps and loss of the run in one line."""
        loss = self.last_loss
        shown = "" if loss is None else f", loss {loss:.4f}"
        return f"{self.status}, {self.steps_done} steps{shown}"

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
            name.removeprefix(LOSS_OF): series
            for name, series in self.train.items()
            if self._is_loss_of_source(name)
        }

    def _is_loss_of_source(self, name: str) -> bool:
        source = name.removeprefix(LOSS_OF)
        return name.startswith(LOSS_OF) and source in self.tokens_by_source


def read_facts(run: RunFolder | Path | str) -> RunFacts:
    """Read the facts of a run from its folder.

    Args:
        run: The run, or its folder or URL. Commands on the page name it as it is given
            here.

    Raises:
        RunFolderError: The folder holds no run.
        OSError: The folder cannot be read.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    run.check()
    folder = run.path
    entries = run.log()
    rows = run.columns
    train = rows.train
    started = run.newest_start
    versions, seed = started.get("versions"), run.settings.get("seed")
    checkpoints, damaged_steps = run.checkpoints()
    damaged = ["run.json"] if run.record is None else []
    damaged += [f"checkpoints/{step}" for step in damaged_steps]
    config = run.config_text() or ""
    best_metric, best_step = _best(checkpoints, run.settings)
    parent, first_step = run.parent, run.first_step
    before = {} if parent is None else parent.tokens_by_source
    first_tokens = 0 if parent is None else parent.tokens
    clock = clock_of(rows, run.starts(), first_step, first_tokens)
    seconds = clock.seconds[-1] if clock.seconds else 0.0
    waited = train.total("wait_s")
    return RunFacts(
        name=folder.resolve().name,
        location=run.location,
        status=run.status,
        step=run.step,
        total_steps=run.total_steps,
        tokens=int(train.last("tokens") or 0),
        seconds=seconds,
        goodput=run.goodput(),
        wait_share=waited / seconds if seconds else 0.0,
        first_time=rows.first_time,
        last_time=rows.last_time,
        seed=seed if is_count(seed) else None,
        parent=parent,
        first_step=first_step,
        first_tokens=first_tokens,
        versions=cast("dict[str, Any]", versions) if isinstance(versions, dict) else {},
        command=_command(started.get("command")),
        devices=_devices(started.get("devices"), started.get("processes")),
        model=_model(run.made_by, config),
        config=config,
        train=series_of(train),
        evaluations=series_of(rows.evaluations),
        clock=clock,
        evaluated_steps=tuple(np.unique(rows.evaluations.steps).tolist()),
        tokens_by_source=_tokens_columns(train, first_step, before),
        shares=_shares(train, "tokens_by_source", before),
        planned_shares=_shares(
            train, "planned_tokens_by_source", None if first_step else {}
        ),
        spikes=tuple(find_spikes(train)),
        phases=tuple(_trained_phases(train, checkpoints, first_step, before)),
        checkpoints=tuple(checkpoints),
        benchmarks=evaluations_of(folder),
        best_metric=best_metric,
        best_step=best_step,
        starts=len(run.starts()),
        alerts=tuple(e for e in entries if e.level not in {"INFO", "DEBUG"}),
        last_text=rows.last_text,
        num_damaged=rows.num_damaged,
        damaged=tuple(damaged),
        plan=_plan(run),
    )


def _tokens_columns(
    train: Table, first_step: int, before: Mapping[str, int]
) -> dict[str, Series]:
    """Return the cumulative tokens by source; all series have the same steps.

    The series begin with 0 tokens at step 0, and in a branch with the tokens of its
    parent.
    """
    field = "tokens_by_source"
    steps = train.steps
    columns = {
        name: np.nan_to_num(train.full_counts(field, name))
        for name in train.sources(field)
    }
    if len(train):
        steps = np.append(first_step, steps)
        # A source of the parent alone has no column here.
        unread = np.zeros(len(train))
        columns = {
            name: np.append(float(before.get(name, 0)), columns.get(name, unread))
            for name in dict.fromkeys([*before, *columns])
        }
    kept = indices_to_draw(sum(columns.values(), start=np.zeros(len(steps))))
    return {
        name: Series(steps[kept].tolist(), column[kept].tolist())
        for name, column in columns.items()
    }


def _shares(
    train: Table, field: str, before: Mapping[str, int] | None
) -> dict[str, Series]:
    """Return the share of each source in the tokens since the previous row.

    `before` has the tokens before the first row. If `before` is None, the first row
    has no share: in a branch, the row also counts the tokens of the parent.
    """
    rows = train.counted(field)
    if not len(rows):
        return {}
    counts = {
        name: train.full_counts(field, name)[rows] for name in train.sources(field)
    }
    new: dict[str, Any] = {}
    for name, count in counts.items():
        first = count[0] if before is None else float(before.get(name, 0))
        new[name] = count - np.append(first, np.nan_to_num(count[:-1]))
    total = sum((np.nan_to_num(each) for each in new.values()), np.zeros(len(rows)))
    steps = train.steps[rows]
    shares: dict[str, Series] = {}
    for name, each in new.items():
        has_share = ~np.isnan(each) & (total > 0)
        if has_share.any():
            share = each[has_share] / total[has_share]
            shares[name] = thinned(steps[has_share], share)
    return shares


def _trained_phases(
    train: Table,
    checkpoints: Sequence[Checkpoint],
    first_step: int,
    tokens_before: Mapping[str, int],
) -> Iterable[PhaseFacts]:
    """Yield the trained part of each phase that rows or the newest checkpoint mention.

    Args:
        train: Training rows of the run.
        checkpoints: Checkpoints of the run, oldest first.
        first_step: The first step of the run, above 0 in a branch. Phases that end
            before this step are phases of the parent, and are left out.
        tokens_before: Tokens before `first_step`, by source.
    """
    recorded = _recorded_phases(checkpoints)
    for index in sorted(recorded)[:-1]:
        if recorded[index + 1]["start"] <= first_step:
            del recorded[index]
    before = tokens_before
    last_step = first_step
    ends = _phase_ends(train)
    for index in sorted({*ends, *recorded}):
        step, so_far = ends.get(index, (last_step, before))
        given = {name: count - before.get(name, 0) for name, count in so_far.items()}
        entry = recorded.get(index, {})
        weights = entry.get("weights", {})
        total = sum(weights.values())
        yield PhaseFacts(
            index=index,
            start=max(entry.get("start", last_step), first_step),
            shape=f"{entry['batch_size']} x {entry['seq_len']}" if entry else "",
            shares={name: weight / total for name, weight in weights.items()},
            tokens=given,
        )
        before = so_far
        last_step = step


def _phase_ends(train: Table) -> dict[int, tuple[int, dict[str, int]]]:
    """Return the step of the last row of each phase, and its tokens by source."""
    phases, steps = train.full("phase", -1.0), train.steps
    field = "tokens_by_source"
    counts = {name: train.full_counts(field, name) for name in train.sources(field)}
    found: dict[int, tuple[int, dict[str, int]]] = {}
    for phase in np.unique(phases[phases >= 0]).tolist():
        row = np.flatnonzero(phases == phase)[-1]
        of_row = {name: each[row] for name, each in counts.items()}
        tokens = {name: int(x) for name, x in of_row.items() if not np.isnan(x)}
        found[int(phase)] = int(steps[row]), tokens
    return found


def _recorded_phases(
    checkpoints: Sequence[Checkpoint],
) -> dict[int, dict[str, Any]]:
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
            # An edit of the weights starts a new entry of the same phase.
            index = max(found)
            found[index] = {**entry, "start": found[index]["start"]}
        else:
            found[len(found)] = entry
    return found


def _is_phase(entry: Any) -> bool:
    """Return whether an entry has the form of a phase in `Sampler.state`."""
    try:
        counts = [entry["start"], entry["batch_size"], entry["seq_len"]]
        weights = list(entry["weights"].values())
        return "edited" in entry and sum(weights) > 0 and all(map(is_count, counts))
    except (AttributeError, KeyError, TypeError):
        return False


def _best(
    checkpoints: list[Checkpoint], settings: Mapping[str, Any]
) -> tuple[str, int | None]:
    """Return the metric that ranks checkpoints, and the step of the best checkpoint."""
    recorded = {c.step: c.best for c in checkpoints}
    metrics = {c.step: c.metrics for c in checkpoints}
    named = None if any(recorded.values()) else settings.get("best_metric")
    metric = named if isinstance(named, str) else None
    rule = BestRule.of_folder(recorded, metric)
    return rule.metric_of(metrics.values()), next(iter(rule.ranked(metrics)), None)


def _command(words: Any) -> str:
    """Return a command line as text, an installed command without its folder."""
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


def _model(made_by: str | None, config: str) -> str:
    """Return a model's function and preset, such as `roxxel.models:llama, small`."""
    made = find_object((made_by or "").encode()) or {}
    with suppress(tomllib.TOMLDecodeError):
        table = tomllib.loads(config)
        if "model" in table:
            made = {"function": table["model"], "args": table.get("model_args")}
    args: Any = made.get("args")
    preset = args.get("preset") if isinstance(args, Mapping) else None
    return ", ".join(str(word) for word in (made.get("function"), preset) if word)


def _plan(run: RunFolder) -> str:
    """Return the plan of the newest start as text; empty if its row has none."""
    try:
        return str(recorded_plan(run.data().state))
    except (OSError, ValueError, CheckpointError):
        return ""
