"""`roxxel train`: start or continue the run that a config file declares."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from roxxel_ckpt import CheckpointMismatchError
from roxxel_curriculum import StateMismatch
from roxxel_store.screen import counted, note, say
from roxxel_train import Preempted, RunFolder, RunMismatchError

from roxxel.cli._arguments import (
    BRANCH,
    CONFIG_EXAMPLE,
    Branch,
    Changes,
    ConfigFile,
    config_of,
    set_again,
    shown_command,
)
from roxxel.cli._launch import Launch, connect, ended_once, run_several, tell
from roxxel.config import (
    ConfigError,
    RunConfig,
    check_model_args,
    config_differences,
    config_values,
    make_trainer,
    refused,
    used_config,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from roxxel_curriculum import Plan
    from roxxel_train import Trainer


EPILOG = CONFIG_EXAMPLE


def train(
    config: ConfigFile,
    *,
    set_: Changes = (),
    branch: Branch = None,
    preflight: bool = False,
    launch: Launch,
    typed: Sequence[str],
) -> None:
    """Start or continue the run that a config file declares.

    You may stop the command at any time, even with kill -9: the same command continues
    from the newest checkpoint. Before you continue, you may edit the config for steps
    that are not trained yet, but not for trained steps.

    Under a launcher such as Slurm, torchrun or Kubernetes, and on TPU pods, start the
    same command once per process, as with `srun`: the processes connect by themselves.

    Args:
        preflight: Check everything, compile every phase, try a few steps, print how
            long the run takes here with its memory and disk space, and exit.
        launch: Processes.

    Raises:
        Preempted: A signal stopped the run after a save.

    Example:
        roxxel train run.toml
        roxxel train run.toml --set trainer.seed=1 --set save_path=runs/second
    """
    declared = config_of(config, set_, branch)
    check_model_args(declared)
    done = None if preflight else _steps_of_complete(declared)
    if launch.starts_several and done is None:
        run_several(launch, typed)
        return
    is_first = connect(launch)
    if done is not None:
        if is_first:
            _say_ending(declared, _complete(done))
        return
    if is_first:
        _say_beginning(declared)
    with _naming_changes(declared):
        trainer = make_trainer(declared)
    if preflight:
        found = trainer.preflight()
        if is_first:
            say(str(found))
        if not found.ok:
            raise ConfigError(f"{declared.file}: the run is not ready; see above")
        return
    if is_first:
        _say_plan(declared, trainer.plan())
    ending = _trained(trainer)
    if is_first:
        _say_ending(declared, ending)


def _trained(trainer: Trainer) -> str:
    """Train a run to its end; return how it ended.

    Raises:
        Ended: A signal stopped the run before its end.
    """
    with ended_once():  # every process ends at the same step
        try:
            summary = trainer.run()
        except Preempted as end:
            if not end.complete:
                raise
            return str(end)
    is_evaluated = summary.eval_loss is not None or summary.evaluation is not None
    had_nothing_to_do = summary.start_step == summary.total_steps and not is_evaluated
    if had_nothing_to_do:
        return _complete(summary.total_steps)
    return str(summary)


def _complete(steps: int) -> str:
    return f"This run is already complete: {steps} steps are done."


def _steps_of_complete(config: RunConfig) -> int | None:
    """Return the steps of a run that is complete under its own config; else None.

    It reads only the folder, because making the model may take long. If something is
    wrong there, the trainer names it.
    """
    if config.run_folder is None:
        return None
    try:
        run = RunFolder(config.run_folder)
        used = used_config(run)
    except (OSError, ValueError):
        return None
    if used is None or used.folder.resolve() != config.folder.resolve():
        return None
    same = replace(config, file=used.file, relative_to=used.relative_to)
    step = run.finished_step
    return step if step == run.total_steps and same == used else None


@contextmanager
def _naming_changes(config: RunConfig) -> Generator[None]:
    """Add to the error of a changed model or of changed data what to restore."""
    try:
        yield
    except RunMismatchError as error:
        if not isinstance(error.__cause__, StateMismatch):
            raise
        raise refused(config, error.__cause__) from error
    except CheckpointMismatchError as error:
        used = used_config(RunFolder(str(config.run_folder)))
        if used is None or not error.reason.startswith(str(config.run_folder)):
            raise  # The checkpoint is that of another run, or a program trained it.
        before, now = config_values(used), config_values(config)
        changed = [
            f"{key} = {old or 'its default'}, which is now {new or 'its default'}"
            for key, (old, new) in config_differences([before, now])
            if key.partition(".")[0] in {"model", "model_args"}
        ]
        remedy = "make the model and the optimizer as before: their code has changed"
        if changed:
            remedy = f"put the config of the model back ({'; '.join(changed)})"
        raise ConfigError(
            f"{config.file}: {error.reason}; {remedy}, or give another save_path"
        ) from error


def _say_beginning(config: RunConfig) -> None:
    """Print what takes the next seconds, before there is anything else to print.

    The line goes to standard error, because standard output begins with the plan.
    """
    phases = counted(len(config.schedule.phases), "phase")
    with suppress(OSError):
        note(f"{config.file}: making the model and tracing the update for {phases} ...")


def _say_plan(config: RunConfig, plan: Plan) -> None:
    tell(plan.brief)
    whole = shown_command("plan", str(config.file), *set_again(config.changes))
    tell(f"the whole plan: {whole}")
    tell("")


def _say_ending(config: RunConfig, text: str) -> None:
    folder = config.run_folder
    tell("")
    tell(text)
    tell("")
    tell(f"In {shlex.quote(str(folder))}:")
    tell("  checkpoints/   model and optimizer")
    tell("  metrics.jsonl  loss, tokens/s, waiting time and evaluations by step")
    tell("  system.log     what happened when")
    tell("  config.toml    the config that was used last, to edit and train again")
    tell(f"Write a report: {shown_command('report', str(folder))}")
    # A branch that has begun continues without the other run.
    changes = [each for each in config.changes if not each.startswith(BRANCH)]
    again = shown_command("train", str(config.file), *set_again(changes))
    tell(
        f"Train longer:   raise the steps of the last phase, in {config.file} or by "
        "--set, then"
    )
    tell(f"                {again}")
