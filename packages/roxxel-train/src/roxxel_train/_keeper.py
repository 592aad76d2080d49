"""The newest state of a run: on the devices, in the user's objects, in checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from roxxel_train._agreement import together
from roxxel_train._metrics import Interval
from roxxel_train._model_state import is_finite, is_sound, put, take
from roxxel_train.errors import NonFiniteError, RunMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future

    from roxxel_ckpt import Checkpointer
    from roxxel_curriculum import Sampler

    from roxxel_train._log import Logger
    from roxxel_train._model_state import Tree
    from roxxel_train._recorder import Recorder


class Keeper:
    """Holds what an update changes, and sees that it is never lost.

    Args:
        model: The user's model, on the mesh.
        optimizer: Its optimizer.
        checkpointer: Of both; None keeps nothing on disk.
        sampler: Describes the data state of a checkpoint.
        logger: Told what could not be saved, and flushed before each checkpoint.

    Attributes:
        tree: The live arrays, donated to the next update.
        step: Updates done.
        saved: Updates in the newest checkpoint.
        interval: Sums of the row of metrics that is open.
        owes_evaluation: Whether the evaluation that is due now has not been made.

    Raises:
        ValueError: The checkpointer saves another model.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: nnx.Optimizer[Any],
        checkpointer: Checkpointer | None,
        sampler: Sampler,
        logger: Logger,
    ) -> None:
        if checkpointer is not None and checkpointer.model is not model:
            raise ValueError(
                "checkpointer saves another model than the one that is trained; "
                "make it of the trainer's own model and optimizer"
            )
        self.model = model
        self.optimizer = optimizer
        self.checkpointer = checkpointer
        self._sampler = sampler
        self._logger = logger
        self.tree: Tree = None
        self.step = 0
        self.saved = 0
        self.interval = Interval()
        self.owes_evaluation = False
        self._is_spoilt = False
        self._check_program: Future[Any] | None = None

    def compile_ahead(self, compiler: Executor) -> None:
        """Begin to compile the check that a save makes, in the background.

        Without this the first save would compile it while the device has nothing to do.
        """
        if self.checkpointer is not None:
            shapes = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
                self._trained(),
            )
            self._check_program = compiler.submit(is_finite.lower(shapes).compile)

    def close(self) -> None:
        """Give up the compilation if it has not begun."""
        if self._check_program is not None:
            self._check_program.cancel()
            self._check_program = None

    def restore(self) -> int:
        """Take the newest good checkpoint, or begin; return the updates done.

        Raises:
            RunMismatchError: The model is no longer the one that the run began with.
            roxxel_ckpt.CheckpointError: A checkpoint cannot be read.
        """
        if self.checkpointer is not None:
            done, self.step = self.step, self.checkpointer.restore()
            self.saved = self.step
            if self.step:
                extra = self.checkpointer.extra or {}
                # Another run may have gone on here since this trainer looked.
                self._sampler.check(extra["data"])
                self.interval = Interval.restore(extra["interval"])
                self.owes_evaluation = not extra["evaluated"]
                self._is_spoilt = False
            else:
                self._is_spoilt = self._is_spoilt or done > 0
        if self._is_spoilt:
            raise RunMismatchError(
                "this trainer stopped before its first checkpoint, and its model is no "
                "longer the one it began with; make a new Trainer with a fresh model"
            )
        self.tree = take(self.model, self.optimizer)
        return self.step

    def show(self) -> None:
        """Make the user's objects hold the newest values; nothing is copied."""
        put(self.model, self.optimizer, self.tree)

    def save(self, recorder: Recorder) -> None:
        """Save the state, unless the newest checkpoint is it, if it is finite.

        Raises:
            NonFiniteError: A loss so far or a parameter now is not finite.
            roxxel_ckpt.CheckpointError: It cannot be written.
        """
        if self.checkpointer is None or self.step == self.saved:
            recorder.drain()
            return
        if jax.process_count() == 1:
            # Now, while the device is at work. What is finished by now, and may raise,
            # can be more in one process than in another.
            recorder.read()
        self.show()
        finite = self._finite()  # asked now, and answered after the updates in flight

        def describe() -> tuple[dict[str, float], dict[str, Any]]:
            recorder.drain()
            self._check(finite, recorder)
            # Rows that the checkpoint counts as written must be on the disk before.
            self._logger.flush()
            return recorder.metrics(self.step), {
                "data": self._sampler.state(self.step),
                "interval": recorder.interval.state(),
                "evaluated": not self.owes_evaluation,
            }

        with recorder.saving(), together():
            if not self.checkpointer.save(self.step, describe=describe):
                # One that skips while it is busy has not saved; this step must be.
                self.checkpointer.wait()
                self.checkpointer.save(self.step, describe=describe)
        recorder.drain()  # the step was there already: nobody described it
        self.saved = self.step

    def check_finite(self, recorder: Recorder) -> None:
        """Look at the parameters: a loss says how they were before its update.

        Raises:
            NonFiniteError: They hold a NaN or an infinite number.
        """
        self._check(self._finite(), recorder)

    def _finite(self) -> jax.Array | bool:
        """Return whether the parameters are finite, or are not to be looked at."""
        trained = self._trained()
        if self.step <= self.saved or not is_sound(trained):
            return True
        program = self._check_program
        if program is not None and program.done():
            return program.result()(trained)
        return is_finite(trained)

    def _trained(self) -> Tree:
        return nnx.to_pure_dict(nnx.state(self.model, self.optimizer.wrt))

    def _check(self, finite: jax.Array | bool, recorder: Recorder) -> None:
        if not finite:
            raise recorder.not_finite(self.step, "it left NaN or infinite parameters")

    def leaving(self, recorder: Recorder) -> Callable[..., None]:
        """Return what puts the newest values into the user's objects at the end.

        After an error the state is saved if it is whole and finite: then nothing but
        the failed step is lost.
        """

        def leave(kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
            del kind, traceback
            self.interval = recorder.interval
            if not is_sound(self.tree):
                self._is_spoilt = True
                return
            if isinstance(error, NonFiniteError):
                self._is_spoilt = True
            elif isinstance(error, Exception):
                self._save_after(error, recorder)
            self.show()

        return leave

    def _save_after(self, error: Exception, recorder: Recorder) -> None:
        """Save what an error left whole; with several processes nobody knows that."""
        if jax.process_count() > 1:
            return
        try:
            self.save(recorder)
        except Exception as second:  # noqa: BLE001 - the first error goes on
            self._logger.warning(
                f"step {self.step} could not be saved after "
                f"{type(error).__name__}: {second}"
            )
