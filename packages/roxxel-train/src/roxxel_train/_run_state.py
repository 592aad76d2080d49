"""The state of a run: what is restored, saved, shown and continued.

The trainer owns one `RunState`. It holds the live arrays, the number of updates done,
the open means of the loss, the position in the data and the evaluation that is still
due, and it is the only object that reads or writes checkpoints of the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
from flax import nnx
from roxxel_ckpt import Checkpointer, CheckpointStateLostError
from roxxel_curriculum import StateMismatch

from roxxel_train._model_state import is_finite, is_sound, put, signature, take
from roxxel_train._observe.losses import LossMeans
from roxxel_train._run_folder import CHECKPOINTS
from roxxel_train.errors import NonFiniteError, RunMismatchError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from concurrent.futures import Executor, Future

    from roxxel_ckpt import RestoreReport
    from roxxel_curriculum import Curriculum, Field, Sampler

    from roxxel_train._log.logger import Logger
    from roxxel_train._model_state import Tree
    from roxxel_train._observe.recorder import Recorder
    from roxxel_train._run_folder import RunFolder


class RunState:
    """Everything that a run needs to continue.

    Args:
        model: The user's model, on the mesh.
        optimizer: Its optimizer.
        folder: Folder of the run; None writes nothing.
        checkpointer: Saves both objects; None saves nothing.
        checkpoint_every: Updates between checkpoints.

    Attributes:
        arrays: The live arrays; the next update donates them.
        step: Updates done.
        losses: Open means of the loss.
        owes_evaluation: Whether the evaluation after `step` is due and not made yet.
        signature: Hash of all shapes and dtypes.
        past: State of the data that the run has read, as JSON; None for a new run.
        weights_from: Path and step of the checkpoint that gave a new run its weights.
        weights_report: How that checkpoint fitted the model.

    Raises:
        ValueError: The checkpointer saves another model.
        RunMismatchError: The folder or the checkpoint is not of this run.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: nnx.Optimizer[Any],
        folder: RunFolder | None,
        checkpointer: Checkpointer | None,
        checkpoint_every: int,
    ) -> None:
        if checkpointer is not None and checkpointer.model is not model:
            raise ValueError(
                "checkpointer saves another model than the one that is trained; "
                "make the checkpointer from the trainer's own model and optimizer"
            )
        self.model = model
        self.optimizer = optimizer
        self.folder = folder
        self.checkpointer = checkpointer
        self._checkpoint_every = checkpoint_every
        self.arrays: Tree = take(model, optimizer)
        self.signature = signature(self.arrays)
        self.step = 0
        self.losses = LossMeans()
        self.owes_evaluation = False
        self.weights_from: dict[str, Any] | None = None
        self.weights_report: RestoreReport | None = None
        self._saved_step = 0
        self._spoilt: str | None = None
        self._is_lost = False
        self._finite_program: Future[Any] | None = None
        self._newest_step, self.past = self._find_past()

    def bind(
        self,
        curriculum: Curriculum,
        seed: int,
        fields: Iterable[Field],
        check: Literal["headers", "blocks"],
    ) -> Sampler:
        """Return the sampler of the run: it continues what the run has read.

        Args:
            curriculum: As it is declared now.
            seed: Seed of the order of the data.
            fields: Fields of a batch.
            check: What is verified of the data that is read.

        Raises:
            RunMismatchError: The run has read something else than the curriculum says.
        """
        try:
            sampler = curriculum.sampler(seed, self.past, fields, check)
        except StateMismatch as error:
            raise RunMismatchError(
                f"{self.folder or 'the checkpoints'}: the run there does not fit this "
                f"curriculum: {error}; or give another save_path"
            ) from error
        if self._newest_step > sampler.total_steps:
            raise RunMismatchError(
                f"the run has done {self._newest_step} steps but the curriculum has "
                f"only {sampler.total_steps}; give as many steps or more, or another "
                "save_path"
            )
        self._sampler = sampler
        return sampler

    def load_weights(self, init_from: str | os.PathLike[str]) -> None:
        """Load the model from the newest checkpoint of another run, for a new run.

        A run that has a checkpoint ignores `init_from`. Random streams keep the values
        of the new model, so runs with the same weights may differ in their seeds.

        Args:
            init_from: Folder of a run, or of checkpoints.

        Raises:
            FileNotFoundError: There is no checkpoint.
            roxxel_ckpt.CheckpointError: The checkpoint is damaged or does not fit.
        """
        if self._newest_step:
            return
        path = Path(init_from)
        inner = path / CHECKPOINTS
        with Checkpointer(inner if inner.is_dir() else path, self.model) as other:
            if other.peek() is None:
                raise FileNotFoundError(
                    f"init_from={str(path)!r}: holds no checkpoint; "
                    "give the folder of a run that has saved one"
                )
            streams = nnx.to_pure_dict(nnx.state(self.model, nnx.RngState))
            step = other.restore()
            nnx.update(self.model, streams)
        self.arrays = take(self.model, self.optimizer)
        self.weights_from = {"path": str(init_from), "step": step}
        self.weights_report = other.report

    def compile_ahead(self, compiler: Executor) -> None:
        """Start to compile the check that every save makes.

        Otherwise the device would be idle while the first save compiles the check.
        """
        if self.checkpointer is not None:
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
        """Restore the newest sound checkpoint, or start; return the updates done.

        Restoring needs no more device memory than training: the live arrays are deleted
        once every file of the checkpoint was verified. When reading fails after that,
        the model is spoilt.

        Raises:
            RunMismatchError: The model is spoilt: it no longer has the values that the
                run began with, and no checkpoint can replace them.
            roxxel_ckpt.CheckpointStateLostError: Reading failed in the middle.
            roxxel_ckpt.CheckpointError: A checkpoint cannot be read.
        """
        if self.checkpointer is not None and not self._is_lost:
            done = self.step
            try:
                # Deletes the live arrays before it places those of the checkpoint.
                self.step = self._saved_step = self.checkpointer.restore(release=True)
            except CheckpointStateLostError:
                self._is_lost = True
                self._spoilt = "lost its model while it read a checkpoint"
                raise
            if self.step:
                extra = self.checkpointer.extra or {}
                # Another program may have continued the run since it was opened here.
                self._sampler.check(extra["data"])
                self.losses = LossMeans.from_json(extra)
                self.owes_evaluation = not extra["evaluated"]
                self._spoilt = None
            elif done:
                self._spoilt = "stopped before its first checkpoint"
        if self._spoilt is not None:
            raise RunMismatchError(
                f"this trainer {self._spoilt}, and its model no longer has the values "
                "that the run began with; make a new Trainer with a fresh model"
            )
        self.arrays = take(self.model, self.optimizer)
        return self.step

    def show(self) -> None:
        """Put the newest arrays into the user's objects, without a copy."""
        put(self.model, self.optimizer, self.arrays)

    def save(self, recorder: Recorder, log: Logger) -> None:
        """Save the state, unless the newest checkpoint has it or it is not finite.

        Raises:
            NonFiniteError: A loss so far, or a parameter, is not finite.
            roxxel_ckpt.CheckpointError: The checkpoint cannot be written.
        """
        if self.checkpointer is None or self.step == self._saved_step:
            recorder.drain()
            return
        # Both are queued behind the updates in flight, so the device stays busy.
        self.show()
        finite = self._finite()
        recorder.drain()

        def describe() -> tuple[dict[str, float], dict[str, Any]]:
            self._check(finite, recorder)
            # The checkpoint counts these rows as written, so they reach the disk first.
            log.flush()
            metrics = recorder.metrics()
            if self.step % self._checkpoint_every == 0:
                self.losses.checkpoint.close()
            return metrics, {
                "data": self._sampler.state(self.step),
                "evaluated": not self.owes_evaluation,
                **self.losses.to_json(),
            }

        with recorder.excluded("save_s"):
            if not self.checkpointer.save(self.step, describe=describe):
                # `on_busy="skip"` skipped the step; a run must not lose the step.
                self.checkpointer.wait()
                self.checkpointer.save(self.step, describe=describe)
        self._saved_step = self.step

    def check_finite(self, recorder: Recorder) -> None:
        """Check the parameters after the last update; a loss shows them before it.

        Raises:
            NonFiniteError: A parameter is NaN or infinite.
        """
        self._check(self._finite(), recorder)

    def leave(
        self, error: BaseException | None, recorder: Recorder, log: Logger
    ) -> None:
        """Put the newest arrays into the user's objects at the end of a run.

        After an error the state is saved if it is whole and finite, so that only the
        failed step is lost.
        """
        if not is_sound(self.arrays):
            self._spoilt = "failed within an update"
            return
        if isinstance(error, NonFiniteError):
            self._spoilt = "stopped on a value that is not finite"
        elif isinstance(error, Exception):
            self._save_after(error, recorder, log)
        self.show()

    def _find_past(self) -> tuple[int, dict[str, Any] | None]:
        """Return the updates done and the state of the data of the run so far."""
        newest = None if self.checkpointer is None else self.checkpointer.peek()
        if newest is not None:
            step, extra = newest
            data = (extra or {}).get("data")
            if data is None:
                raise RunMismatchError(
                    f"the checkpoint of step {step} holds no state of the data, so a "
                    "trainer did not write it; give another save_path"
                )
            return step, data
        record = None if self.folder is None else self.folder.record
        if record is None:
            return 0, None
        if record["model"] != self.signature:
            raise RunMismatchError(
                f"{self.folder}: the run in this folder was started with a model or "
                "optimizer of other shapes and has no checkpoint yet; "
                "give another save_path"
            )
        return 0, record["data"]

    def _trained(self) -> Tree:
        return nnx.to_pure_dict(nnx.state(self.model, self.optimizer.wrt))

    def _finite(self) -> jax.Array | bool:
        """Start to check the parameters; return True where no check is needed."""
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

    def _save_after(self, error: Exception, recorder: Recorder, log: Logger) -> None:
        """Save after an error of this process, where no other process takes part."""
        if jax.process_count() > 1:
            return
        try:
            self.save(recorder, log)
        except Exception as second:  # noqa: BLE001 - the first error is the one to raise
            log.warning(
                f"step {self.step} could not be saved after "
                f"{type(error).__name__}: {second}"
            )
