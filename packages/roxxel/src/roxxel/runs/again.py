"""Some steps of a run trained again, and two trainings compared bit for bit.

`trained_again` begins at a checkpoint of the run, in a folder of its own, with the
config that the run had at each step. `replay`, `drill` and `verify` compare by
`compare_rows`, `compare_saves` and `compare_checkpoints`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import jax
from roxxel_ckpt.coordination import Channel, process_index
from roxxel_ckpt.values import different_leaves
from roxxel_curriculum.run_log import METRICS
from roxxel_train import TIMING_FIELDS, RunFolderError
from roxxel_train.config import CONTINUOUS, adds_in_one_order
from roxxel_train.distributed import barrier
from roxxel_train.starts import environment_differences

from roxxel.config import (
    NOT_REPEATED,
    ConfigError,
    config_differences,
    config_values,
    make_trainer,
    used_config,
)
from roxxel.runs.run import open_run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from roxxel_train import RunFolder

    from roxxel.config import RunConfig
    from roxxel.runs.run import Run

_OWN = ("run", "log")  # of `extra`: each run has an id and a log of its own
_KEPT = 1_000_000  # more checkpoints than an interval has
_FIRST = ("digest", "loss", "grad_norm")
"""What is named first of the values that differ at a step."""

_scratches = Channel("again/scratch")


@dataclass(frozen=True)
class StepDifference:
    """What differs between two trainings at a step.

    Attributes:
        step: The step.
        quantity: A field of a row, `state_digest`, or the name of a leaf.
        what: Both values, or how far they are apart.

    >>> str(StepDifference(20, "loss", "2.5 and 2.75"))
    'step 20: loss 2.5 and 2.75'
    """

    step: int
    quantity: str
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.quantity} {self.what}"


def compare_rows(
    a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]]
) -> tuple[list[StepDifference], int]:
    """Compare the rows of two logs; return the first differences, and the rows.

    Times are left out. The differences are those of the first step with any.
    """
    rows = [_by_place(each) for each in (a, b)]
    keys = sorted(rows[0].keys() | rows[1].keys(), key=lambda key: (key[1], key[0]))
    found: list[StepDifference] = []
    for kind, step in keys:
        if found and found[0].step < step:
            break
        ones, others = (each.get((kind, step), []) for each in rows)
        if len(ones) != len(others):
            found.append(_uneven(step, kind, len(ones), len(others)))
        found += [
            StepDifference(step, name, f"{x} and {y}")
            for pair in zip(ones, others, strict=False)
            for name, x, y in _different_values(*map(_untimed, pair))
        ]
    first = [each for name in _FIRST for each in found if each.quantity == name]
    return [*first, *(x for x in found if x.quantity not in _FIRST)], len(keys)


def compare_saves(a: Mapping[int, str], b: Mapping[int, str]) -> list[StepDifference]:
    """Compare the saves in two logs, and their state digests."""
    return [
        StepDifference(step, "state_digest", f"{a[step]} and {b[step]}")
        if step in a and step in b
        else _uneven(step, "save", step in a, step in b)
        for step in sorted(a.keys() | b.keys())
        if a.get(step) != b.get(step)
    ]


def compare_checkpoints(
    a: RunFolder, b: RunFolder, step: int
) -> tuple[list[StepDifference], int]:
    """Compare a checkpoint of two runs; return also how many leaves are equal.

    Leaves are compared bit by bit, and what was saved beside them but for the id of
    the run and the place in its log.
    """
    leaves, equal = different_leaves(*(f"{x}/checkpoints@{step}" for x in (a, b)))
    beside = [_beside(each, step) for each in (a, b)]
    found = [(each.name, each.what) for each in leaves]
    found += [(n, f"{x} and {y}") for n, x, y in _different_values(*beside)]
    return [StepDifference(step, *each) for each in found], equal


def common_steps(a: RunFolder, b: RunFolder, after: int = 0) -> list[int]:
    """Return the steps after `after` of which both runs have a sound checkpoint."""
    kept = [{each.step for each in run.checkpoints()[0]} for run in (a, b)]
    return sorted(step for step in kept[0] & kept[1] if step > after)


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


def trained_again(run: Run, start: int, stop: int, folder: Path) -> Run:
    """Train the steps of a run after `start` and up to `stop` again, and open the run.

    Args:
        run: The run, which `roxxel train` started.
        start: A step with a checkpoint of the run, or its first step.
        stop: The last step.
        folder: A folder for the new run, which is `again` in it.

    Raises:
        RunFolderError: The run has no config to train by, or its config contradicts
            what the run has trained.
    """
    config = config_of(run, start + 1)
    for mark in _marks(run, start, stop, config):
        used = config_of(run, mark)
        if used.trainer.checkpoint_every == CONTINUOUS:
            # Saves that nobody can repeat: save at the mark alone.
            trainer = replace(used.trainer, checkpoint_every=mark, keep_every=None)
            used = replace(used, trainer=trainer)
        changed = _again(run, used, start, folder)
        try:
            trainer = make_trainer(changed)
        except ConfigError as error:
            reason = str(error).removeprefix(f"{changed.file}: ")
            raise RunFolderError(
                f"{run.files.path / METRICS}: by its config for step {mark}, the run "
                f"cannot be trained again: {reason}"
            ) from error
        trainer.run(until=mark)
    return open_run(folder / "again", run.moved, trust=True)


def config_of(run: Run, step: int | None = None) -> RunConfig:
    """Return the config of a run at a step, with the sources where they are now.

    Raises:
        RunFolderError: A Python program started the run.
    """
    config = used_config(run.files, step) if step is not None else run.config
    if config is None or config.model is None:
        raise RunFolderError(
            f"{run.path}: a Python program started this run, so its folder has no "
            "config to train by; train runs by `roxxel train CONFIG`, or give "
            "branch_from= and without= in the program"
        )
    run.check_trusted(config)
    return run.with_moved(config)


def explanations(run: Run, again: Run) -> Iterator[str]:
    """Yield what two runs were trained on, where it differs and may explain it."""
    ours, theirs = again.files.newest_start, run.files.newest_start
    for name, in_run, here in environment_differences(theirs, ours):
        yield f"{name}: {in_run} in the run, {here} here"
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.default_backend() == "gpu" and not adds_in_one_order(flags):
        yield (
            "on this GPU, some operations add in any order; train both with "
            "XLA_FLAGS=--xla_gpu_deterministic_ops=true"
        )


def _marks(run: Run, start: int, stop: int, config: RunConfig) -> list[int]:
    """Return the steps after which training must pause, the last one included.

    The run went on with another config there, or saved without being due.
    """
    marks = {stop}
    values = config_values(config)
    for each in sorted({x.step for x in run.files.starts() if start < x.step < stop}):
        now = config_values(config_of(run, each + 1))
        if config_differences([values, now]):
            marks.add(each)
            values = now
    for step in run.files.saves():
        every = config_of(run, step).trainer.checkpoint_every
        if start < step < stop and not (isinstance(every, int) and step % every == 0):
            marks.add(step)
    return sorted(marks)


def _again(run: Run, config: RunConfig, start: int, folder: Path) -> RunConfig:
    changes = {
        **NOT_REPEATED,
        "max_to_keep": _KEPT,
        "branch_from": config.trainer.branch_from,
    }
    parent = run.parent
    if start > (parent.step if parent is not None and parent.is_branch else 0):
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


def _by_place(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, int], list[Any]]:
    found: dict[tuple[str, int], list[Any]] = {}
    for row in rows:
        found.setdefault((row["kind"], row["step"]), []).append(row)
    return found


def _uneven(step: int, kind: str, first: int, second: int) -> StepDifference:
    what = f"stands {first:d} times in the first log and {second:d} in the second"
    return StepDifference(step, f"row {kind!r}", what)


def _untimed(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in row.keys() - TIMING_FIELDS}


def _beside(run: RunFolder, step: int) -> dict[str, Any]:
    """Return what a checkpoint holds beside its arrays, by name."""
    [found] = (each for each in run.checkpoints()[0] if each.step == step)
    extra = {n: x for n, x in found.extra.items() if n not in _OWN}
    return {**found.metrics, **extra}


def _different_values(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    names = sorted(a.keys() | b.keys())
    return [(n, a.get(n), b.get(n)) for n in names if a.get(n) != b.get(n)]
