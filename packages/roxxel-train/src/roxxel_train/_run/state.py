"""The state of a run, which is restored, trained and saved.

The trainer owns one `RunState`. Only this object reads or writes the run's checkpoints.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from roxxel_ckpt import Checkpointer, CheckpointStateLostError
from roxxel_ckpt.values import STATE_DIGEST
from roxxel_curriculum import StateMismatch
from roxxel_store.lines import LinePosition

from roxxel_train._files.folder import AUTOTUNE
from roxxel_train._observe.ledger import Ledger, LossMean, LossMeans
from roxxel_train._run.evaluation import HeldOutSets
from roxxel_train._run.events import failed_save
from roxxel_train._run.origin import find_past, origin_records
from roxxel_train._step.compiled import is_debugging
from roxxel_train._step.placement import instead_of_set_mesh
from roxxel_train._step.spikes import SpikeWindow
from roxxel_train._step.step import (
    ModelState,
    is_sound,
    put,
    restart,
    signature,
    take,
)
from roxxel_train.errors import (
    NonFiniteError,
    RunMismatchError,
    SilentCorruptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from concurrent.futures import Executor, Future
    from contextlib import AbstractContextManager
    from pathlib import Path

    from jax.sharding import Mesh
    from roxxel_ckpt.contents import Files
    from roxxel_curriculum import Curriculum

    from roxxel_train._files.own_folder import OwnFolder
    from roxxel_train._log.logger import Logger
    from roxxel_train._observe.recorder import Recorder
    from roxxel_train._step.step import Tree
    from roxxel_train.config import TrainConfig


class RunState:
    """The arrays, the data order and the totals of a run, and its checkpoints.

    Attributes:
        sampler: The sampler of the run, which continues the data that the run has read.
        path: Folder of the run; None if the run writes no files.
        best_metric: The metric that ranks the checkpoints in the run's own folder.
        arrays: The live arrays; the next update donates them.
        step: Updates done.
        first_step: Updates done before the run: the step at which a branch begins, or
            0.
        found_step: Updates done when the trainer was made, before `restore` sets
            `step`.
        is_evaluation_due: Whether the run must still evaluate after `step`.
        past_log: Where the log ended when the restored checkpoint was saved; None if
            there was none.
        rate_at: The optimizer's learning rate after a number of updates; None if
            unknown.
        past_rate: `next_rate` when the restored checkpoint was saved; None if unknown.
        past_made_by: How the model was made then; None if unknown.
        origin: The checkpoint of another run from which this run starts; None if the
            run has a checkpoint of its own.
        held_out: The held-out sets, pinned under their names.
        window: The window of `skip_spikes` in `arrays`.
        finite: The check of the parameters, compiled ahead.
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
        elif checkpointer is not None and checkpointer.model is not model:
            raise ValueError(
                "checkpointer saves another model than this trainer trains; "
                "make the checkpointer from the trainer's own model and optimizer"
            )
        metric = None if checkpointer is None else checkpointer.best_rule.metric
        self.best_metric = metric if config.checkpointer is None else None
        self._name = str(folder or "the checkpoints")
        self.model = model
        self.optimizer = optimizer
        self.folder = folder
        self.path = None if folder is None else folder.path
        self.rate_at: Callable[[int], float] | None
        self.rate_at = getattr(optimizer, "rate_at", None)
        self.checkpointer = checkpointer
        self._checkpoint_every = config.checkpoint_every
        self.past_log: LinePosition | None = None
        self.past_rate: float | None = None
        self.past_made_by: str | None = None
        self.arrays: Tree = take(model, optimizer)
        self.signature = signature(self.arrays)
        self._mesh = mesh
        self.window = SpikeWindow(config.spike_rule, mesh)
        self.window.begin(self.arrays)
        self.step = 0
        self.losses = LossMeans()
        self.ledger = Ledger()
        self.is_evaluation_due = False
        self._saved_step = 0
        self._is_saved_evaluated = True
        self._spoilt: str | None = None
        self._is_lost = False
        self.finite = FiniteCheck(model, optimizer)
        self._past = past = find_past(
            config,
            checkpointer,
            self._name,
            None if folder is None else folder.record,
            model,
            optimizer,
            self.signature,
        )
        self.origin, self.found_step = past.origin, past.step
        is_branch = past.origin is not None and past.origin.is_branch
        self.first_step = past.step if is_branch else 0
        self.curriculum = curriculum
        try:
            self.sampler = curriculum.sampler(
                config.seed, past.data, config.fields, config.check
            )
        except StateMismatch as error:
            raise past.mismatch(error) from error
        if self.found_step > self.sampler.total_steps:
            raise RunMismatchError(
                f"the run has done {self.found_step} steps but the curriculum has "
                f"only {self.sampler.total_steps}; give as many steps or more, or "
                "another save_path"
            )
        self.held_out = HeldOutSets.of(
            config, curriculum, past.held_out, metric, self._name
        )

    @property
    def save_path(self) -> Path | str | None:
        """Path or URL of the run; None if the run writes no files."""
        return None if self.folder is None else self.folder.location

    @property
    def is_unsaved_branch(self) -> bool:
        """Whether the run is at the start of a branch, and has no checkpoint yet."""
        return self._saved_step < self.step == self.first_step

    @property
    def run_lock_begins(self) -> bool:
        """Whether taking `run_lock` also makes this program the writer of checkpoints.

        Then the checkpointer must not take over again. If another program has taken
        over since, its log would be lost, because `run_lock` fetched an older log.
        """
        if self.folder is None or self.checkpointer is None:
            return False
        return self.folder.shares_manifest(self.checkpointer.checkpoint_path)

    @property
    def made_by(self) -> str | None:
        """How the model was made; None if it does not say it."""
        found = getattr(self.model, "made_by", None)  # any model may have this name
        return found if isinstance(found, str) else None

    @property
    def next_rate(self) -> float | None:
        """Learning rate of the next update; None if the optimizer does not tell it."""
        return None if self.rate_at is None else float(self.rate_at(self.step))

    @property
    def num_foreign_updates(self) -> int:
        """Updates that the optimizer of a new run counted before it."""
        is_new = self.step == 0 and self.origin is None
        return int(self.optimizer.step[...]) if is_new else 0

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Undo the changes that updates inside the block make to the arrays.

        Meanwhile the values are in the host's memory, so the block needs no more device
        memory than training.
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

    @property
    def objects(self) -> ModelState:
        """The user's objects, with the values of the last `show`."""
        step = nnx.Variable(jnp.asarray(self.step))
        return ModelState(self.model, self.optimizer, step)

    def show(self) -> None:
        """Put the newest arrays into the user's objects, without a copy."""
        put(self.model, self.optimizer, self.arrays)

    def shown(self) -> ModelState:
        """Return the user's objects with the newest arrays."""
        self.show()
        return self.objects

    def load_origin(self) -> None:
        """Load the checkpoint from which a new run starts, if any."""
        if self.origin is None:
            return
        with instead_of_set_mesh(self._mesh):
            self.origin.load()
            self.arrays = self.arrays | take(self.model, self.optimizer)
            self._begin_branch()

    def run_lock(self) -> AbstractContextManager[None]:
        """Return a context in which process 0 holds `OwnFolder.run_lock`."""
        if self.folder is None:
            return nullcontext()
        if jax.process_index() != 0:
            # Process 0 fetches all files. On GPUs, the compiler of every process reads
            # this folder.
            if self.folder.mirror is not None:
                self.folder.mirror.fetch_folder(AUTOTUNE)
            return nullcontext()
        return self.folder.run_lock(
            model=self.signature,
            data=self.sampler.state(self.first_step),
            held_out=self.held_out.record,
            **origin_records(self.origin, self.sampler),
        )

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
                if extra != self._past.extra:
                    self._check_continued(extra)
                self._continue(extra)
                self._is_saved_evaluated = not self.is_evaluation_due
                past = extra.get("log")
                self.past_log = None if past is None else LinePosition(**past)
                self._spoilt = None
            # Without a checkpoint, a run begins with the arrays that the model has.
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

    def _check_continued(self, extra: Mapping[str, Any]) -> None:
        """Raise RunMismatchError if another run or other data led to a checkpoint."""
        try:
            self.sampler.check(extra["data"])
        except StateMismatch as error:
            raise self._past.mismatch(error) from error
        self.held_out.check(extra.get("held_out", {}), self._name)

    def save(self, recorder: Recorder, logs: Sequence[Logger]) -> None:
        """Save the state, unless the newest checkpoint holds this step.

        A checkpoint that was saved before its evaluation, which a signal or an error
        had ended, is replaced when the evaluation was made: it ranks checkpoints. The
        first of `logs` is the one with the metrics rows; all get the row of the save.

        Raises:
            NonFiniteError: A loss or a parameter is not finite.
        """
        is_evaluated = not self.is_evaluation_due
        is_saved = self.step == self._saved_step
        is_whole = is_saved and (self._is_saved_evaluated or not is_evaluated)
        if self.checkpointer is None or is_whole:
            recorder.drain()
            return
        # `show` and `finite` do not wait for updates in flight: the device stays busy.
        self.show()
        finite = self._is_finite()
        recorder.drain()
        with recorder.excluded("save_s"):
            self._check(finite, recorder)
            digest = self.checkpointer.state_digest()
            for each in logs:
                each.save(self.step, digest)
            # A resumed run relies on all metrics rows up to its checkpoint. If the log
            # fails, the checkpoint keeps them, and the run ends with `log.failure`.
            position = logs[0].position()
            # The mean loss of a checkpoint is that since the last one that was due. A
            # branch begins in the middle, as the other run would have gone on.
            every = self._checkpoint_every
            is_due = not isinstance(every, int) or self.step % every == 0
            is_due = is_due and self.step > self.first_step
            open_ = LossMean() if is_due else self.losses.checkpoint
            extra = {
                "data": self.sampler.state(self.step),
                "held_out": self.held_out.record,
                "next_rate": self.next_rate,
                "made_by": self.made_by,
                STATE_DIGEST: digest,
                "evaluated": is_evaluated,
                **LossMeans(self.losses.metrics_row, open_).to_json(),
                "ledger": self.ledger.to_json(),
                **self.window.to_json(self.arrays),
                "log": None if position is None else position._asdict(),
            }
            metrics = recorder.metrics()
            if is_saved:
                self.checkpointer.wait()  # the first save of a branch is in flight
                metrics = self.checkpointer.metrics(self.step) | metrics
            # Whoever restores this checkpoint from a bucket needs its metrics rows.
            files = self._files_of_step
            self.checkpointer.save(self.step, metrics, extra, is_saved, files)
            if is_due:
                self.losses.checkpoint.close()
        self._saved_step, self._is_saved_evaluated = self.step, is_evaluated

    def _files_of_step(self) -> Files:
        if self.folder is None or self.checkpointer is None:
            return {}
        return self.folder.files_of_step(self.checkpointer.checkpoint_path)

    def check_finite(self, recorder: Recorder) -> None:
        """Check the parameters after the last update: no later loss tests them."""
        self._check(self._is_finite(), recorder)

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
        elif isinstance(error, SilentCorruptionError):
            self._spoilt = "stopped on an update that gave other bits when repeated"
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

    def _continue(self, extra: Mapping[str, Any]) -> None:
        """Continue the totals that the checkpoint of `step` holds."""
        self.losses = LossMeans.from_json(extra)
        self.ledger = Ledger.from_json(extra["ledger"])
        self.is_evaluation_due = not extra["evaluated"]
        self.past_rate = extra.get("next_rate")
        self.past_made_by = extra.get("made_by")
        self.window.resume(self.arrays, extra)

    def _is_finite(self) -> jax.Array | bool:
        """Start to check the parameters; True if no update has changed them."""
        return self.step <= self._saved_step or self.finite.begin()

    def _check(self, finite: jax.Array | bool, recorder: Recorder) -> None:
        if not finite:
            raise recorder.not_finite(
                self.step, "the update left NaN or infinite parameters"
            )


class FiniteCheck:
    """The check of the parameters before a save, and after the last update.

    It does not wait for the device.
    """

    def __init__(self, model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> None:
        self._model = model
        self._optimizer = optimizer
        self._program: Future[Any] | None = None

    def compile_ahead(self, compiler: Executor) -> None:
        """Start to compile the check, so the first save does not wait for it."""
        if not is_debugging():
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
                self._trained(),
            )
            self._program = compiler.submit(_are_finite.lower(shapes).compile)

    def close(self) -> None:
        """Cancel the compilation if it has not started."""
        if self._program is not None:
            self._program.cancel()
            self._program = None

    def begin(self) -> jax.Array | bool:
        """Start the check; True for arrays that the next update has donated."""
        trained = self._trained()
        if not is_sound(trained):
            return True
        program = self._program
        if program is not None and program.done():
            return program.result()(trained)
        return _are_finite(trained)

    def _trained(self) -> Tree:
        return nnx.to_pure_dict(nnx.state(self._model, self._optimizer.wrt))


@jax.jit
def _are_finite(tree: Tree) -> jax.Array:
    """Return whether every number of the tree is finite, as a bool scalar."""
    return jnp.asarray(
        [
            jnp.isfinite(x).all()
            for x in jax.tree.leaves(tree)
            if jnp.issubdtype(x.dtype, jnp.inexact)
        ]
    ).all()
