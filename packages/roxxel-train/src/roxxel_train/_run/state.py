"""The state of a run, which is restored, trained and saved.

The trainer owns one `RunState`. Only this object reads or writes the run's checkpoints.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, nullcontext
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx
from roxxel_ckpt import (
    Checkpointer,
    CheckpointMismatchError,
    CheckpointStateLostError,
)
from roxxel_ckpt.values import STATE_DIGEST
from roxxel_curriculum import StateMismatch
from roxxel_curriculum.run_log import start_fields
from roxxel_store.lines import LinePosition

from roxxel_train._files.identity import check_owner
from roxxel_train._files.records import AUTOTUNE
from roxxel_train._observe.ledger import Ledger
from roxxel_train._observe.recorder import LossMean, LossMeans
from roxxel_train._run.events import failed_save
from roxxel_train._run.held_out import HeldOutSets
from roxxel_train._run.origin import (
    Given,
    Origin,
    check_is_elsewhere,
    check_is_origin,
    find_origin,
)
from roxxel_train._step import spikes
from roxxel_train._step.compiled import is_debugging
from roxxel_train._step.loss import SKIPPED
from roxxel_train._step.step import (
    WINDOW,
    is_finite,
    is_sound,
    put,
    restart,
    signature,
    take,
)
from roxxel_train.errors import NonFiniteError, RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence
    from concurrent.futures import Executor, Future
    from contextlib import AbstractContextManager
    from pathlib import Path

    from jax.sharding import Mesh
    from roxxel_ckpt.contents import Files
    from roxxel_curriculum import Curriculum, Plan

    from roxxel_train._files.own_folder import OwnFolder
    from roxxel_train._log.logger import Logger
    from roxxel_train._observe.recorder import Recorder
    from roxxel_train._step.step import Tree
    from roxxel_train.config import TrainConfig


_RECORDED_FLAGS = {
    "XLA_FLAGS": lambda: os.environ.get("XLA_FLAGS", ""),
    "matmul_precision": lambda: str(jax.config.jax_default_matmul_precision),  # pyright: ignore[reportAttributeAccessIssue] - JAX declares its options at run time
    "x64": lambda: jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue] - as above
}
_RECORDED_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")


class RunState:
    """The arrays, the data order and the totals of a run, and its checkpoints.

    Attributes:
        sampler: The sampler of the run, which continues the data that the run has read.
        best_metric: The metric that ranks the checkpoints in the run's own folder.
        arrays: The live arrays; the next update donates them.
        step: Updates done.
        found_step: Updates done when the trainer was made, before `restore` sets
            `step`.
        is_evaluation_due: Whether the run has yet to evaluate after `step`.
        past_log: Where the log ended when the restored checkpoint was saved; None if
            there was none.
        past_fields: Fields of a batch when the restored checkpoint was saved; None if
            unknown.
        past_rate: `next_rate` when the restored checkpoint was saved; None if unknown.
        origin: The checkpoint of another run from which this run starts; None if the
            run has a checkpoint of its own.
        held_out: The held-out sets, pinned under their names.
    """

    def __init__(
        self,
        config: TrainConfig,
        curriculum: Curriculum,
        model: nnx.Module,
        optimizer: nnx.Optimizer[Any],
        folder: OwnFolder | None,
        mesh: Mesh,
    ) -> None:
        checkpointer = config.checkpointer
        self.best_metric: str | None = None
        if checkpointer is None and folder is not None:
            checkpointer = Checkpointer(
                folder.checkpoints,
                model,
                optimizer,
                config.max_to_keep,
                config.timeout,
                keep_every=config.keep_every,
                best_metric=config.best_metric,
                best_mode=None if config.best_metric is None else "min",
            )
            self.best_metric = checkpointer.best_rule.metric
        elif checkpointer is not None and checkpointer.model is not model:
            raise ValueError(
                "checkpointer saves another model than this trainer trains; "
                "make the checkpointer from the trainer's own model and optimizer"
            )
        self.model = model
        self.optimizer = optimizer
        self.folder = folder
        self.checkpointer = checkpointer
        self._settings = config.settings()
        self._checkpoint_every = config.checkpoint_every
        self.past_log: LinePosition | None = None
        self.past_fields: Sequence[str] | None = None
        self.past_rate: float | None = None
        self.arrays: Tree = take(model, optimizer)
        self.signature = signature(self.arrays)
        self._rule = config.spike_rule
        self._mesh = mesh
        if self._rule is not None:
            self.arrays[WINDOW] = spikes.begin(self._rule, mesh)
        self.step = 0
        self.losses = LossMeans()
        self.ledger = Ledger()
        self.is_evaluation_due = False
        self._saved_step = 0
        self._spoilt: str | None = None
        self._is_lost = False
        self._finite_program: Future[Any] | None = None
        self.origin: Origin | Given | None = None
        self.found_step, self._past, measured = self._find_past(config)
        self.curriculum = curriculum
        try:
            self.sampler = curriculum.sampler(
                config.seed, self._past, config.fields, config.check
            )
        except StateMismatch as error:
            raise self._mismatch(error) from error
        if self.found_step > self.sampler.total_steps:
            raise RunMismatchError(
                f"the run has done {self.found_step} steps but the curriculum has "
                f"only {self.sampler.total_steps}; give as many steps or more, or "
                "another save_path"
            )
        self.held_out = HeldOutSets.of(config, curriculum, measured, self._name)
        metric = None if checkpointer is None else checkpointer.best_rule.metric
        self.held_out.check_ranking(measured, metric, self._name)

    @property
    def path(self) -> Path | None:
        """Folder of the run; None if the run writes no files."""
        return None if self.folder is None else self.folder.path

    @property
    def save_path(self) -> Path | str | None:
        """Path or URL of the run; None if the run writes no files."""
        return None if self.folder is None else self.folder.location

    def plan(self) -> Plan:
        """Return the curriculum's plan; for trained steps, what the run has read."""
        return self.curriculum.plan(self.sampler.seed, self._past)

    @property
    def first_step(self) -> int:
        """Updates done before the run: the step at which a branch begins, or 0."""
        is_branch = self.origin is not None and self.origin.is_branch
        return self.origin.step if self.origin is not None and is_branch else 0

    @property
    def is_unsaved_branch(self) -> bool:
        """Whether the run is at the start of a branch, and has no checkpoint yet."""
        return self._saved_step < self.step == self.first_step

    @property
    def next_rate(self) -> float | None:
        """Learning rate of the next update; None if the optimizer does not tell it."""
        return None if self.rate_at is None else float(self.rate_at(self.step))

    @property
    def rate_at(self) -> Callable[[int], float] | None:
        """The optimizer's learning rate after a number of updates; None if unknown."""
        return getattr(self.optimizer, "rate_at", None)

    @property
    def skipped(self) -> int:
        """Updates that `skip_spikes` has left out so far."""
        return int(self.arrays[WINDOW][SKIPPED]) if WINDOW in self.arrays else 0

    def begin_phase(self) -> None:
        """Compare the updates of a new phase with none of another blend or length."""
        if self._rule is not None:
            window = self.arrays[WINDOW]
            self.arrays[WINDOW] = spikes.begin_phase(self._rule, self._mesh, window)

    def load_origin(self) -> None:
        """Load the checkpoint from which a new run starts, if any."""
        if self.origin is None:
            return
        self.origin.load()
        self.arrays = self.arrays | take(self.model, self.optimizer)
        self._begin_branch()

    def check_mask(self, unused: Collection[str]) -> None:
        """Raise ValueError if something is withdrawn and the loss ignores the mask."""
        last = {each.source: each for each in self.sampler.withdrawals}
        withdrawn = [each for each in last.values() if not each.is_empty]
        if withdrawn and "loss_mask" in unused:
            raise ValueError(
                f"{withdrawn[0].amount} of source {withdrawn[0].source!r} must not be "
                "learned, but the loss does not use the field 'loss_mask', so the run "
                "would learn them; weight the loss of token j of a row by "
                "loss_mask[:, j]"
            )

    def run_lock(self) -> AbstractContextManager[None]:
        """Return a context in which process 0 holds `OwnFolder.run_lock`."""
        if self.folder is None:
            return nullcontext()
        if jax.process_index() != 0:
            # On GPUs, the compiler of every process reads this folder.
            self.folder.fetch_folder(AUTOTUNE)
            return nullcontext()
        newest = None if self.checkpointer is None else self.checkpointer.latest_step
        return self.folder.run_lock(
            newest or 0,
            model=self.signature,
            data=self.sampler.state(self.first_step),
            held_out=self.held_out.record,
            init_from=self._origin_record("init_from"),
            branch_from=self._origin_record("branch_from"),
        )

    def start_row(self, devices: Mapping[str, int], seconds: float) -> dict[str, Any]:
        """Return what the row of a start says, after a restore that took `seconds`.

        `devices` counts the devices of the run by kind.
        """
        return {
            **start_fields(self.step, self.sampler, self.curriculum, seconds),
            "made_by": getattr(self.model, "made_by", None),
            "settings": self._settings,
            "command": sys.argv,
            "versions": {name: metadata.version(name) for name in _RECORDED_VERSIONS},
            "devices": dict(devices),
            "processes": jax.process_count(),
            "mesh": dict(self._mesh.shape),
            "flags": {name: read() for name, read in _RECORDED_FLAGS.items()},
        }

    def compile_ahead(self, compiler: Executor) -> None:
        """Start to compile `is_finite`, so the first save does not wait for it."""
        if self.checkpointer is not None and not is_debugging():
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
                self._trained(),
            )
            self._finite_program = compiler.submit(is_finite.lower(shapes).compile)

    def close(self) -> None:
        """Cancel the compilation if it has not started."""
        if self._finite_program is not None:
            self._finite_program.cancel()
            self._finite_program = None

    def restore(self) -> int:
        """Restore the newest sound checkpoint, if any; return the updates done.

        Restoring needs no more device memory than training: the checkpointer verifies
        every file of the checkpoint, then deletes the live arrays. If reading fails
        after the deletion, the model is lost, and later calls raise RunMismatchError.
        """
        if self.checkpointer is not None and not self._is_lost:
            done = self.step
            try:
                # `release` deletes the live arrays before it creates the restored ones.
                self.step = self._saved_step = self.checkpointer.restore(release=True)
            except CheckpointStateLostError:
                self._is_lost = True
                self._spoilt = "lost its model while it read a checkpoint"
                raise
            report = self.checkpointer.report
            new = () if report is None else report.new
            if any(name.startswith("optimizer/") for name in new):
                restart(self.model, self.optimizer, {*new})
            if self.step:
                extra = self.checkpointer.extra or {}
                # Another program may have continued the run since the constructor ran.
                try:
                    self.sampler.check(extra["data"])
                except StateMismatch as error:
                    raise self._mismatch(error) from error
                if jax.process_index() == 0:  # Only this process knows a new id.
                    check_owner(self._record, extra.get("run"), self.step, self._name)
                self.held_out.check(extra.get("held_out", {}), self._name)
                self._continue(extra)
                past = extra.get("log")
                self.past_log = None if past is None else LinePosition(**past)
                self.past_fields = extra.get("fields")
                self._spoilt = None
            elif done > self.first_step:
                self._spoilt = "stopped before its first checkpoint"
            else:
                self._begin_branch()
        if self._spoilt is not None:
            raise RunMismatchError(
                f"this trainer {self._spoilt}, and its model no longer has the values "
                "with which the run started; make a new Trainer with a fresh model"
            )
        self.arrays = self.arrays | take(self.model, self.optimizer)
        return self.step

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Undo what updates inside the block do to the arrays.

        The values wait in the host's memory, so the block needs no more memory on the
        device than training.
        """
        places = jax.tree.map(lambda x: x.sharding, self.arrays)
        host = jax.tree.map(lambda x: x.with_memory_kind("pinned_host"), places)
        kept = jax.device_put(self.arrays, host, may_alias=False)
        try:
            yield
        finally:
            for array in jax.tree.leaves(self.arrays):
                array.delete()
            self.arrays = jax.device_put(kept, places)
            self.show()

    def show(self) -> None:
        """Put the newest arrays into the user's objects, without a copy."""
        put(self.model, self.optimizer, self.arrays)

    def save(self, recorder: Recorder, logs: Sequence[Logger]) -> None:
        """Save the state, unless the newest checkpoint holds this step.

        The first of `logs` has the metrics rows; all get the row of the save.

        Raises:
            NonFiniteError: A loss or a parameter is not finite.
        """
        if self.checkpointer is None or self.step == self._saved_step:
            recorder.drain()
            return
        # `show` and `_finite` do not wait for updates in flight: the device stays busy.
        self.show()
        finite = self._finite()
        recorder.drain()
        with recorder.excluded("save_s"):
            self._check(finite, recorder)
            digest = self.checkpointer.state_digest()
            for each in logs:
                each.save(self.step, digest)
            # A resumed run relies on all metrics rows up to its checkpoint. If the log
            # fails, the checkpoint keeps them, and the run ends with `log.failure`.
            position = logs[0].position()
            # The mean loss of a checkpoint is that since the last one that was due.
            every = self._checkpoint_every
            is_due = not isinstance(every, int) or self.step % every == 0
            open_ = LossMean() if is_due else self.losses.checkpoint
            extra = {
                "data": self.sampler.state(self.step),
                "held_out": self.held_out.record,
                "fields": [*self.sampler.fields],
                "next_rate": self.next_rate,
                "run": (self._record or {}).get("id"),
                STATE_DIGEST: digest,
                "evaluated": not self.is_evaluation_due,
                **LossMeans(self.losses.metrics_row, open_).to_json(),
                "ledger": self.ledger.to_json(),
                **self._window_record(),
                "log": None if position is None else position._asdict(),
            }
            metrics = recorder.metrics()
            # Whoever restores this checkpoint from a bucket needs its metrics rows.
            self.checkpointer.save(self.step, metrics, extra, files=self._files_of_step)
            if is_due:
                self.losses.checkpoint.close()
        self._saved_step = self.step

    def _files_of_step(self) -> Files:
        if self.folder is None or self.checkpointer is None:
            return {}
        return self.folder.files_of_step(self.checkpointer.checkpoint_path)

    def check_finite(self, recorder: Recorder) -> None:
        """Check the parameters after the last update, which no later loss can test."""
        self._check(self._finite(), recorder)

    def leave(
        self,
        error: BaseException | None,
        recorder: Recorder,
        logs: Sequence[Logger],
    ) -> None:
        """Put the newest arrays into the user's objects at the end of a run.

        After an error, a single process saves the state if no array is deleted and all
        numbers are finite, so only the failed step is lost.
        """
        if not is_sound(self.arrays):
            self._spoilt = "failed within an update"
            return
        if isinstance(error, NonFiniteError):
            self._spoilt = "stopped on a value that is not finite"
        # With several processes, the others would not join the save.
        elif isinstance(error, Exception) and jax.process_count() == 1:
            try:
                self.save(recorder, logs)
            except Exception as second:  # noqa: BLE001 - the first error is the one to raise
                logs[0].warning(failed_save(self.step, error, second))
        self.show()

    def _begin_branch(self) -> None:
        """Continue the totals of the parent, if this run is a branch."""
        if self.origin is not None and self.origin.is_branch:
            self.step = self.origin.step
            self._continue(self.origin.extra)

    def _origin_record(self, option: str) -> dict[str, Any] | None:
        """Return the record of the origin for `run.json`; None without this option.

        Metrics rows of a branch also count the tokens of its parent. The record has the
        tokens of the parent, so that readers of the rows can subtract them. The primary
        is `"self"` in the record, as in the state of the data.
        """
        if self.origin is None or self.origin.option != option:
            return None
        if not self.origin.is_branch:
            return self.origin.record
        primary = self.sampler.primary
        tokens = {
            "self" if name == primary else name: count
            for name, count in self.sampler.delivered_tokens(self.first_step).items()
        }
        return {**self.origin.record, "tokens_by_source": tokens}

    def _continue(self, extra: Mapping[str, Any]) -> None:
        """Continue the totals that the checkpoint of `step` holds."""
        self.losses = LossMeans.from_json(extra)
        self.ledger = Ledger.from_json(extra["ledger"])
        self.is_evaluation_due = not extra["evaluated"]
        self.past_rate = extra.get("next_rate")
        past = extra.get("spikes")
        if self._rule is not None and past is not None:
            self.arrays[WINDOW] = spikes.resume(self._rule, self._mesh, past)

    def _window_record(self) -> dict[str, Any]:
        """Return the window of `skip_spikes` for a checkpoint; empty without it."""
        if self._rule is None:
            return {}
        return {"spikes": spikes.to_json(self._rule, self.arrays[WINDOW])}

    def _find_past(
        self, config: TrainConfig
    ) -> tuple[int, dict[str, Any] | None, Mapping[str, Any] | None]:
        """Return the updates done, the data state and the held-out sets of the past.

        Both are None for a new run. Sets `origin` if the run has no checkpoint and
        starts from another run.
        """
        if config.branch_from is not None and self.checkpointer is not None:
            check_is_elsewhere(config.branch_from, self.checkpointer.checkpoint_path)
        record = self._record
        if config.branch_from is not None and record is not None:
            check_is_origin("branch_from", config.branch_from, record, self._name)
        newest = None if self.checkpointer is None else self._newest(self.checkpointer)
        if newest is not None:
            step, extra = newest
            extra = extra or {}
            data = extra.get("data")
            if data is None:
                raise RunMismatchError(
                    f"the checkpoint of step {step} has no data state, so a trainer "
                    "did not write this checkpoint and cannot continue its data; give "
                    "another folder, and init_from= this one to start with its weights"
                )
            check_owner(record, extra.get("run"), step, self._name)
            return step, data, extra.get("held_out")
        if record is not None and record["model"] != self.signature:
            raise RunMismatchError(
                f"{self.folder}: the run in this folder was started with a model or "
                "optimizer of other shapes and has no checkpoint yet; "
                "give another save_path"
            )
        self.origin = origin = find_origin(
            {"init_from": config.init_from, "branch_from": config.branch_from},
            record,
            self.model,
            self.optimizer,
            config.timeout,
            self._name,
        )
        if origin is not None and origin.data is not None:
            return origin.step, origin.data, (record or {}).get("held_out")
        if record is None:
            return 0, None, None
        return 0, record["data"], record.get("held_out")

    def _newest(
        self, checkpointer: Checkpointer
    ) -> tuple[int, dict[str, Any] | None] | None:
        """Return step and `extra` of the newest sound checkpoint, if it fits."""
        try:
            return checkpointer.peek(must_fit=True)
        except CheckpointMismatchError as error:
            raise CheckpointMismatchError(
                error.reason,
                "make the model and the optimizer that were saved, or give another "
                "save_path, with init_from= this run to take its weights alone",
            ) from error

    @property
    def _record(self) -> dict[str, Any] | None:
        """Content of `run.json`; None without a folder, or before the first start."""
        return None if self.folder is None else self.folder.record

    @property
    def _name(self) -> str:
        """What error messages call the run."""
        return str(self.folder or "the checkpoints")

    def _mismatch(self, error: StateMismatch) -> RunMismatchError:
        """Return the error for a curriculum that differs in trained steps."""
        if self.origin is not None:
            return RunMismatchError(
                f"{self.origin}: the run there does not fit this curriculum: {error}; "
                "or branch from an earlier step"
            )
        return RunMismatchError(
            f"{self._name}: the run there does not fit this "
            f"curriculum: {error}; or give another save_path"
        )

    def _trained(self) -> Tree:
        return nnx.to_pure_dict(nnx.state(self.model, self.optimizer.wrt))

    def _finite(self) -> jax.Array | bool:
        """Start to check the parameters; return True if they need no check."""
        trained = self._trained()
        if self.step <= self._saved_step or not is_sound(trained):
            return True
        program = self._finite_program
        if program is not None and program.done():
            return program.result()(trained)
        return is_finite(trained)

    def _check(self, finite: jax.Array | bool, recorder: Recorder) -> None:
        if not finite:
            raise recorder.not_finite(
                self.step, "the update left NaN or infinite parameters"
            )
