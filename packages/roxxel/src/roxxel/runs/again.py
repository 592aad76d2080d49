"""Some steps of a run, trained again.

`trained_again` begins at a checkpoint of the run, in a separate folder, with the config
that the run had at each step.
"""

from __future__ import annotations

import math
import os
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

import jax
from roxxel_ckpt.coordination import Channel, process_index
from roxxel_curriculum import Phase, Policy, Schedule, StateMismatch
from roxxel_curriculum.run_log import METRICS
from roxxel_curriculum.state import checked_state, recorded_phases
from roxxel_store.records import find_object, is_count
from roxxel_store.urls import absolute
from roxxel_train import Logger, RunFolderError
from roxxel_train.config import CONTINUOUS, Settings, adds_in_one_order
from roxxel_train.distributed import barrier
from roxxel_train.starts import environment_differences

from roxxel.config import (
    NOT_REPEATED,
    AsTrained,
    ConfigError,
    MeshConfig,
    RunConfig,
    TrainerConfig,
    config_differences,
    config_values,
    make_trainer,
    used_config,
)
from roxxel.runs.run import open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from roxxel.runs.run import Run

_REMEDY = "train with `roxxel train CONFIG`, whose runs can be trained again"
_KEPT = 1_000_000  # more checkpoints than an interval has
_scratches = Channel("again/scratch")


@contextmanager
def scratch_folder(what: str) -> Generator[Path]:
    """Yield a temporary folder, which is the same in all processes of a host."""
    barrier(f"{what}: every process has read what was there")
    with ExitStack() as held:

        def make() -> str:
            if process_index() != 0:
                return ""
            return held.enter_context(TemporaryDirectory(prefix=f"roxxel-{what}-"))

        path = Path(_scratches.agree("scratch", make, lambda names: names[0], 300))
        yield path
        barrier(f"{what}: every process has read the scratch folder")


def trained_again(
    run: Run,
    start: int,
    stop: int,
    folder: Path,
    say: Callable[[str], object] = lambda _: None,
) -> Run:
    """Train the steps of a run after `start` and up to `stop` again, and open the run.

    Args:
        run: The run.
        start: A step with a checkpoint of the run, or its first step.
        stop: The last step.
        folder: A folder for the new run, which is `again` in it.
        say: Called with a few lines about the progress.

    Raises:
        RunFolderError: As for `config_of`, or the config contradicts what the run has
            trained.
    """
    config = config_of(run, start + 1)
    say(f"training steps {start} to {stop} again")
    progress = _Progress(say, start, stop)
    for mark in _marks(run, start, stop, config):
        used = config_of(run, mark)
        if used.trainer.checkpoint_every == CONTINUOUS:
            # Saves that nobody can repeat: save at the mark alone.
            trainer = replace(used.trainer, checkpoint_every=mark, keep_every=None)
            used = replace(used, trainer=trainer)
        changed = _again(run, used, start, folder)
        begun = run.files.start_of(mark)
        log = Logger(folder / "again", [progress], terminal=False)
        try:
            trainer = make_trainer(changed, as_trained(run, begun), log)
        except (ConfigError, StateMismatch) as error:
            reason = str(error).removeprefix(f"{changed.file}: ")
            raise RunFolderError(
                f"{run.files.path / METRICS}: by its config for step {mark}, the run "
                f"cannot be trained again: {reason}"
            ) from error
        trainer.run(until=mark)
    return open_run(folder / "again", run.moved, trust=True)


def as_trained(run: Run, start: Mapping[str, Any]) -> AsTrained:
    """Return what a start of a run has read and used, from its row.

    Raises:
        RunFolderError: The row does not say which data the start reads.
    """
    try:
        data = start["data"]["state"]
    except (KeyError, TypeError) as error:
        raise RunFolderError(
            f"{run.files.path / METRICS}: the row of a start does not say which data "
            "it reads; restore the file"
        ) from error
    return AsTrained(data, _held_out_states(run), _devices_of(start))


def _devices_of(start: Mapping[str, Any]) -> list[Any] | None:
    """Return as many devices as a start used, or None if there are no more than these.

    Sums over another number of devices have other bits.
    """
    mesh, devices = start.get("mesh"), jax.devices()
    if not isinstance(mesh, dict) or jax.process_count() > 1:
        return None  # Each process must have some of the devices.
    sizes = cast("dict[str, Any]", mesh).values()
    count = math.prod(sizes) if all(map(is_count, sizes)) else 0
    return devices[:count] if 0 < count < len(devices) else None


def _held_out_states(run: Run) -> dict[str, Any]:
    record: Any = (run.files.record or {}).get("held_out")
    for each in run.checkpoints[-1:]:
        record = each.extra.get("held_out", record)
    try:
        return dict(record["states"])
    except (KeyError, TypeError, ValueError):  # None, or a record of somebody else
        return {}


class _Progress:
    """A sink that says how far an interval is, about four times."""

    def __init__(self, say: Callable[[str], object], start: int, stop: int) -> None:
        self._say = say
        self._told, self._stop = start, stop
        self._every = max(1, (stop - start) // 4)

    def __call__(self, row: Mapping[str, Any]) -> None:
        step = row["step"]
        if row["kind"] == "train" and self._told + self._every <= step < self._stop:
            self._told = step
            self._say(f"  step {step} of {self._stop}")


def config_of(run: Run, step: int | None = None) -> RunConfig:
    """Return the config of a run at a step, with the sources where they are now.

    A file that a config names, or the newest checkpoint of another run, may have
    changed since the start. So the config leaves out the documents that the run left
    out, whatever a file under `[without]` lists, and begins with the checkpoint with
    which the run began.

    Raises:
        RunFolderError: The run has no config, and none follows from its log.
    """
    config = None
    # An earlier start may have had a config, whose model and rate are others.
    if "own" not in run.files.start_of(step):
        config = used_config(run.files, step)
    if config is None:
        config = _config_of_program(run, step)
    if config.model is None:
        raise RunFolderError(f"{run.path}: its config has no model; {_REMEDY}")
    run.check_trusted(config)
    since = run.files.start_of(step).get("step", 0)
    left_out = {x.source: x.listed() for x in run.withdrawals if x.step <= since}
    without = {name: listed for name, listed in left_out.items() if listed}
    config = replace(config, schedule=replace(config.schedule, without=without))
    parent = run.parent
    if parent is not None:
        option = "branch_from" if parent.is_branch else "init_from"
        given = getattr(config.trainer, option)
        if given is not None:
            begun = {option: parent.below(absolute(config.corpus(str(given))))}
            config = replace(config, trainer=replace(config.trainer, **begun))
    return run.with_moved(config)


def _config_of_program(run: Run, step: int | None) -> RunConfig:
    """Return the config that declares what a program without a config has declared.

    The row of its start has the data, the settings of the trainer, and the arguments of
    `roxxel.models.llama`.

    Raises:
        RunFolderError: The program had a model or a function that no command can make.
    """
    row = run.files.start_of(step)
    made = find_object(str(row.get("made_by")).encode()) or {}
    own = row.get("own")
    what = ""
    if made.get("function") != "llama" or not isinstance(own, list):
        what = "a model that is not of roxxel.models.llama"
    elif own:
        what = f"{' and '.join(map(str, cast('list[Any]', own)))} of its own"
    if what:
        raise RunFolderError(
            f"{run.path}: a Python program started this run with {what}, so its folder "
            f"has no config to train by; {_REMEDY}"
        )
    try:
        return _declared(run, row, made["args"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{run.path}: its log does not say how its program trained it ({error}); "
            f"{_REMEDY}"
        ) from error


def _declared(run: Run, row: Mapping[str, Any], args: Mapping[str, Any]) -> RunConfig:
    data, settings = row["data"], dict(row["settings"])
    state = checked_state(data["state"])
    names = [source["name"] for source in state["sources"]]
    for name in names:
        if data["sources"].get(name) is None and name not in run.moved:
            raise ValueError(f"it has no path of source {name!r}")
    for name in ("init_from", "branch_from"):
        # The path in the settings may be relative to a folder that nobody knows.
        if settings.get(name) is not None:
            if run.parent is None:
                raise ValueError(f"it has no checkpoint for {name}")
            settings[name] = run.parent.path
    mesh = row["mesh"]
    return RunConfig(
        file=run.files.path / "config.toml",
        sources={name: _paths(data["sources"].get(name)) for name in names},
        schedule=Schedule(
            phases=_phases(state),
            longest=state["longest"],
            policies={x["name"]: Policy(**x["policy"]) for x in state["sources"]},
            overlap=state["overlap"],
            skips=tuple((at, steps) for at, steps in state["skips"]),
            primary=names[0],
        ),
        model="roxxel.models:llama",
        model_args=args,
        seed=state["seed"],
        save_path=str(run.path),
        trainer=TrainerConfig(
            # A stranger's log may name a function or a sink, which would be called.
            **{
                each.name: settings[each.name]
                for each in fields(Settings)
                if each.name in settings and each.name not in {"profile", "log_to"}
            }
        ),
        mesh=MeshConfig(axes=mesh) if {*mesh} != {"data"} else None,
    )


def _phases(state: Mapping[str, Any]) -> tuple[Phase, ...]:
    """Return the phases as a program declares them that continues the run.

    A phase that was edited has several entries. It is declared with its newest weights,
    and the state of the checkpoint from which it goes on divides it as it was.
    """
    found: list[Phase] = []
    for entry in recorded_phases(state):
        before = found.pop().steps or 0 if entry.is_edited else 0
        steps, weights = before + entry.steps, dict(entry.weights)
        found.append(Phase(steps, entry.batch_size, entry.seq_len, weights))
    return tuple(found)


def _paths(where: str | list[str] | None) -> tuple[str, ...]:
    return (where,) if isinstance(where, str) else tuple(where or ())


def explanations(run: Run, again: Run) -> Iterator[str]:
    """Yield how machine and software of two runs differ, which may explain bits."""
    ours, theirs = again.files.newest_start, run.files.newest_start
    for name, in_run, here in environment_differences(theirs, ours):
        yield f"{name}: {in_run} in the run, {here} here"
    if again.parent is None and "own" in run.files.start_of(0):
        yield (
            "a program gave the run its first weights: it may have changed them, and "
            "on several devices their last bits are others; begin at a checkpoint"
        )
    try:
        run.sampler(("loss_mask",) if run.has_masks else ("tokens",))
    except RunFolderError as error:
        yield str(error)
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() == "gpu" and not adds_in_one_order(flags):
        yield (
            "on this GPU, some operations add in any order; train both with "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true"
        )


def _marks(run: Run, start: int, stop: int, config: RunConfig) -> list[int]:
    """Return the steps after which training must pause, the last one included.

    There the run continued with another config or mesh, or saved unscheduled.
    """
    marks = {stop}
    values, mesh = config_values(config), run.files.start_of(start + 1).get("mesh")
    for each in sorted({x.step for x in run.files.starts() if start < x.step < stop}):
        now = config_values(config_of(run, each + 1))
        mesh_now = run.files.start_of(each + 1).get("mesh")
        if config_differences([values, now]) or mesh != mesh_now:
            marks.add(each)
            values, mesh = now, mesh_now
    # A branch has saved the step at which it begins, and no start of it trained.
    for step in [step for step in run.files.saves() if start < step < stop]:
        every = config_of(run, step).trainer.checkpoint_every
        if not (isinstance(every, int) and step % every == 0):
            marks.add(step)
    return sorted(marks)


def _again(run: Run, config: RunConfig, start: int, folder: Path) -> RunConfig:
    changes = {
        **NOT_REPEATED,
        "max_to_keep": _KEPT,
        # All are kept. Without a name, a run refuses other held-out sets than it had.
        "best_metric": "loss_since_save",
        "branch_from": config.trainer.branch_from,
    }
    if start > run.files.first_step:
        where = run.path if isinstance(run.path, str) else run.path.absolute()
        changes |= {"init_from": None, "branch_from": f"{where}@{start}"}
    return replace(
        config,
        file=folder / "again.toml",
        relative_to=str(config.folder.resolve()),
        save_path=str(folder / "again"),
        trainer=replace(config.trainer, **changes),
        changes=(),
    )
