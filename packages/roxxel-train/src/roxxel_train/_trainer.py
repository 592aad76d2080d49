"""The loop that joins data, update, log and checkpoints.

A step is counted when its update is done: "step k" in a row, an evaluation or a
checkpoint means k updates done, and the next batch is batch k.
"""

from __future__ import annotations

import operator
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import StateMismatch
from roxxel_loader import device_stream

from roxxel_train._agreement import together
from roxxel_train._cache import use_compilation_cache
from roxxel_train._log import Logger
from roxxel_train._metrics import Interval
from roxxel_train._model_state import (
    ModelState,
    is_finite,
    is_sound,
    place,
    put,
    signature,
    take,
)
from roxxel_train._placement import BatchPlacement, mesh_and_sharding
from roxxel_train._recorder import Recorder
from roxxel_train._run_folder import RunFolder
from roxxel_train._signals import StopRequests
from roxxel_train._step import Updates, descend, make_update
from roxxel_train._summary import RunSummary
from roxxel_train.errors import NonFiniteError, Preempted, RunMismatchError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from jax.sharding import Mesh, NamedSharding
    from roxxel_curriculum import Curriculum, Plan, Sampler

    from roxxel_train._model_state import Tree
    from roxxel_train._step import LossFunction, TrainStep


class Trainer:
    """Trains a model over a curriculum, and goes on where it was stopped.

    Everything that can be checked without running is checked here: the folder, the
    data against what the folder's run has seen, the loss function for the shape of
    every phase.

    Args:
        model: A Flax NNX module. It is placed on the mesh now; after `run()` it holds
            the newest values.
        optimizer: Its `nnx.Optimizer`, likewise.
        curriculum: What every step reads.
        loss_fn: `(model, batch)` to a scalar, `(scalar, dict of scalars)` or a dict
            with `"loss"`; all scalars are logged. `batch` has shape
            `(batch_size, seq_len)` and dtype int32.
        save_path: Folder of the run: `checkpoints/`, `metrics.jsonl`, `system.log` and
            `run.json`. None writes nothing.
        eval_fn: Gets a `ModelState` on every process and returns text, a number, a dict
            of these, or None; process 0 logs it.
        eval_every: Updates between evaluations; None evaluates after the last only.
        checkpoint_every: Updates between checkpoints; the last update is always saved.
        log_every: Updates between rows; the first and the last are always logged.
        seed: Seed of the order of the data.
        mesh: Devices to use; by default all of them along one axis, `"data"`.
        data_sharding: Sharding of a batch over the mesh; by default its rows over the
            mesh's first axis.
        checkpointer: In place of the one made under `save_path`.
        logger: In place of the one made under `save_path`.
        train_step: `(model, optimizer, batch)`, updates both in place and returns what
            `loss_fn` may; in place of the gradient of `loss_fn`. It is compiled here,
            so it needs no `nnx.jit` of its own.
        max_to_keep: Newest checkpoints kept, beside the best one.
        timeout: Seconds that a wait for a checkpoint may take.
        grad_accum_steps: Parts that each batch is cut into, to save memory.
        strict_sharding: Whether a batch that does not divide over the mesh is an error
            instead of being replicated.

    Raises:
        ValueError: An argument is out of range, or a batch does not divide.
        TypeError: `loss_fn` does not return a loss.
        RunMismatchError: The folder holds another run, or one that saw other data.
        OSError: The folder cannot be written.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: nnx.Optimizer[Any],
        curriculum: Curriculum,
        loss_fn: LossFunction | None = None,
        save_path: str | os.PathLike[str] | None = None,
        eval_fn: Callable[[ModelState], Any] | None = None,
        eval_every: int | None = None,
        checkpoint_every: int = 1000,
        log_every: int = 10,
        seed: int = 0,
        mesh: Mesh | None = None,
        data_sharding: NamedSharding | None = None,
        checkpointer: Checkpointer | None = None,
        logger: Logger | None = None,
        train_step: TrainStep | None = None,
        max_to_keep: int = 3,
        timeout: int = 1000,
        grad_accum_steps: int = 1,
        *,
        strict_sharding: bool = False,
    ) -> None:
        for name, value in {
            "eval_every": eval_every,
            "checkpoint_every": checkpoint_every,
            "log_every": log_every,
            "grad_accum_steps": grad_accum_steps,
        }.items():
            if value is not None and operator.index(value) < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        if train_step is None:
            if loss_fn is None:
                raise ValueError("give loss_fn, or train_step in its place")
            train_step = descend(loss_fn, grad_accum_steps)
        elif grad_accum_steps != 1:
            raise ValueError(
                f"grad_accum_steps={grad_accum_steps} needs loss_fn; "
                "your own train_step cuts its batches itself"
            )
        self.model = model
        self.optimizer = optimizer
        self.curriculum = curriculum
        self.seed = seed
        self._eval_fn = eval_fn
        self._eval_every = eval_every
        self._checkpoint_every = checkpoint_every
        self._log_every = log_every

        mesh, sharding = mesh_and_sharding(mesh, data_sharding)
        self._placement = BatchPlacement(sharding, strict=strict_sharding)
        place(model, optimizer, mesh)
        self._model_signature = signature(take(model, optimizer))

        self._folder = None if save_path is None else RunFolder(save_path)
        if checkpointer is None and self._folder is not None:
            checkpointer = Checkpointer(
                self._folder.checkpoints, model, optimizer, max_to_keep, timeout
            )
        self._checkpointer = checkpointer
        self._logger = logger or Logger(save_path)
        self._sampler = self._compare_with_past()
        _check_accumulation(curriculum, grad_accum_steps)
        self._batches = self._batch_shapes()
        update = make_update(nnx.graphdef((model, optimizer)), train_step)
        # Traced now, for every phase: so a wrong loss function shows at once.
        self._updates = Updates(update, take(model, optimizer), self._batches)
        self._state: Tree = None
        self._step = 0
        self._saved = 0
        self._interval = Interval()
        self._evaluation: Any = None
        self._owes_evaluation = False
        self._is_spoilt = False

    def plan(self) -> Plan:
        """Return what every phase takes from every source; reads no tokens."""
        return self.curriculum.plan(self.seed)

    def run(self) -> RunSummary:
        """Train until the curriculum is done; go on from the newest good checkpoint.

        Returns:
            What was done; at once, if the run was complete already.

        Raises:
            Preempted: SIGTERM or SIGINT asked for a stop; the state is saved. It is a
                `SystemExit` with code 75.
            NonFiniteError: A loss or the parameters became NaN or infinite.
            RunMismatchError: Another process runs in the folder, or this trainer was
                stopped before its first checkpoint.
            roxxel_ckpt.CheckpointError: A checkpoint cannot be written or read.
            Exception: What `loss_fn`, `eval_fn` or the data raised, after the last
                whole state was saved.
        """
        use_compilation_cache()
        begin = time.perf_counter()
        total = self._sampler.total_steps
        with ExitStack() as stack:
            with together():
                log, stop = self._open(stack)
            start = self._restore(log)
            recorder = Recorder(
                log, self._sampler, self._log_every, start, self._interval
            )
            if start < total:
                phase = self._sampler.phase(start)
                self._updates.compile_ahead(self._batches[phase:])
            batches = stack.enter_context(
                device_stream(self._sampler, start, total, self._placement)
            )
            recorder.waited_s = lambda: batches.stats.waited_s
            stack.push(self._leaving(recorder))
            if self._owes_evaluation:
                self._evaluate(start, recorder)

            for step, batch in enumerate(batches, start + 1):
                with recorder.apart("compile_s"):
                    update = self._updates.for_batch(batch)
                self._state, scalars = update(self._state, batch)
                self._step = step
                recorder.push(step, scalars)
                if self._is_due(step, self._eval_every):
                    self._evaluate(step, recorder)
                asked = stop.received(step)
                if asked or self._is_due(step, self._checkpoint_every):
                    self._save(step, recorder)
                if asked:
                    raise Preempted(step, asked, saved=self._checkpointer is not None)

            recorder.drain()
            put(self.model, self.optimizer, self._state)
            self._check_finite(self._step, recorder)
            return RunSummary(
                start_step=start,
                step=self._step,
                total_steps=total,
                loss=recorder.last.get("loss"),
                evaluation=self._evaluation,
                tokens=recorder.new_tokens,
                seconds=time.perf_counter() - begin,
                waited_s=recorder.waited_s(),
                save_path=None if self._folder is None else self._folder.path,
            )

    def _is_due(self, step: int, every: int | None) -> bool:
        return step == self._sampler.total_steps or (
            every is not None and step % every == 0
        )

    def _open(self, stack: ExitStack) -> tuple[Logger, StopRequests]:
        """Claim the folder and open what must be closed again."""
        if self._folder is not None and jax.process_index() == 0:
            stack.enter_context(self._folder.claimed())
            # Before anything else is written: it says whose the folder is.
            self._folder.begin(
                seed=self.seed,
                data=self._sampler.state(0),
                model=self._model_signature,
            )
        log = stack.enter_context(self._logger)
        stop = stack.enter_context(StopRequests())
        if self._checkpointer is not None:
            stack.callback(self._checkpointer.close)
        return log, stop

    def _restore(self, log: Logger) -> int:
        """Take the newest good checkpoint, or begin; return the updates done."""
        total = self._sampler.total_steps
        if self._checkpointer is not None:
            done, self._step = self._step, self._checkpointer.restore()
            self._saved = self._step
            if self._step:
                extra = self._checkpointer.extra or {}
                # Another run may have gone on here since this trainer looked.
                self._sampler.check(extra["data"])
                self._interval = Interval.restore(extra["interval"])
                self._owes_evaluation = not extra["evaluated"]
                self._is_spoilt = False
            else:
                self._is_spoilt = self._is_spoilt or done > 0
        if self._is_spoilt:
            raise RunMismatchError(
                "this trainer stopped before its first checkpoint, and its model is no "
                "longer the one it began with; make a new Trainer with a fresh model"
            )
        self._state = take(self.model, self.optimizer)
        with together():
            dropped = log.cut_metrics(self._step)
        if self._step == total:
            log.info(f"already complete: {total} of {total} steps are done")
        elif self._step:
            log.info(f"resumed from step {self._step} of {total}")
        else:
            log.info(f"starts: {total} steps in {len(self.curriculum.phases)} phases")
        if dropped:
            log.info(
                f"{dropped} rows of metrics after step {self._step} were dropped; "
                "they are written again"
            )
        if self._step < total:
            shapes = [batch.shape for batch in self._batches]
            for note in self._placement.notes(shapes):
                log.info(note)
        return self._step

    def _evaluate(self, step: int, recorder: Recorder) -> None:
        self._owes_evaluation = self._eval_fn is not None
        if self._eval_fn is None:
            return
        recorder.drain()
        with recorder.apart("eval_s"):
            put(self.model, self.optimizer, self._state)
            state = ModelState(
                self.model, self.optimizer, nnx.Variable(jnp.asarray(step))
            )
            self._evaluation = self._eval_fn(state)
        recorder.evaluation(step, self._evaluation)
        self._owes_evaluation = False

    def _save(self, step: int, recorder: Recorder) -> None:
        """Save the state after update `step`, if it is finite.

        Raises:
            NonFiniteError: A loss so far or a parameter now is not finite.
        """
        recorder.drain()
        if self._checkpointer is None:
            return
        with recorder.apart("save_s"):
            put(self.model, self.optimizer, self._state)
            self._check_finite(step, recorder)
            with together():
                # Rows that the checkpoint counts as written must be on the disk before.
                self._logger.flush()
            extra = {
                "data": self._sampler.state(step),
                "interval": recorder.interval.state(),
                "evaluated": not self._owes_evaluation,
            }
            metrics = recorder.metrics(step)
            if not self._checkpointer.save(step, metrics, extra=extra):
                # One that skips while it is busy has not saved; this step must be.
                self._checkpointer.wait()
                self._checkpointer.save(step, metrics, extra=extra)
        self._saved = step

    def _check_finite(self, step: int, recorder: Recorder) -> None:
        """Look at the parameters: a loss says how they were before its update."""
        trained = nnx.to_pure_dict(nnx.state(self.model, self.optimizer.wrt))
        if step > self._saved and is_sound(trained) and not is_finite(trained):
            raise recorder.not_finite(step, "it left NaN or infinite parameters")

    def _leaving(self, recorder: Recorder) -> Callable[..., None]:
        """Return what puts the newest values into the user's objects at the end.

        After an error the state is saved if it is whole and finite: then nothing but
        the failed step is lost.
        """

        def leave(kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
            del kind, traceback
            self._updates.close()
            self._interval = recorder.interval
            if not is_sound(self._state):
                self._is_spoilt = True
                return
            if isinstance(error, NonFiniteError):
                self._is_spoilt = True
            elif isinstance(error, Exception) and self._step > self._saved:
                self._save_after(error, recorder)
            put(self.model, self.optimizer, self._state)

        return leave

    def _save_after(self, error: Exception, recorder: Recorder) -> None:
        """Save what an error left whole; with several processes nobody knows that."""
        if jax.process_count() > 1:
            return
        try:
            self._save(self._step, recorder)
        except Exception as second:  # noqa: BLE001 - the first error goes on
            self._logger.warning(
                f"step {self._step} could not be saved after "
                f"{type(error).__name__}: {second}"
            )

    def _compare_with_past(self) -> Sampler:
        """Bind the curriculum to what the folder's run has already seen."""
        state: dict[str, Any] | None = None
        newest = None if self._checkpointer is None else self._checkpointer.peek()
        if newest is not None:
            step, extra = newest
            state = (extra or {}).get("data")
            if state is None:
                raise RunMismatchError(
                    f"the checkpoint of step {step} holds no state of the data, so a "
                    "trainer did not write it; give another save_path"
                )
        elif self._folder is not None and self._folder.record is not None:
            self._folder.check_model(self._model_signature)
            state = self._folder.record["data"]
        try:
            sampler = self.curriculum.sampler(self.seed, state=state)
        except StateMismatch as error:
            place = "the checkpoints" if self._folder is None else self._folder.path
            raise RunMismatchError(
                f"{place}: the run there does not fit this curriculum: {error}; "
                "or give another save_path"
            ) from error
        if newest is not None and newest[0] > sampler.total_steps:
            raise RunMismatchError(
                f"the run has done {newest[0]} steps but the curriculum has only "
                f"{sampler.total_steps}; give it as many or more, or another save_path"
            )
        return sampler

    def _batch_shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Return shape, dtype and sharding of the batches of each phase."""
        dtype = jax.dtypes.canonicalize_dtype(self._sampler.dtype)
        shapes = [(p.batch_size, p.seq_len) for p in self.curriculum.phases]
        return [
            jax.ShapeDtypeStruct(shape, dtype, sharding=self._placement(shape))
            for shape in shapes
        ]


def _check_accumulation(curriculum: Curriculum, grad_accum_steps: int) -> None:
    """Check that every batch can be cut into so many parts.

    Raises:
        ValueError: One cannot.
    """
    for index, phase in enumerate(curriculum.phases):
        if phase.batch_size % grad_accum_steps:
            raise ValueError(
                f"phase {index} has batch_size={phase.batch_size}, which does not "
                f"divide by grad_accum_steps={grad_accum_steps}; "
                f"use a multiple of {grad_accum_steps}"
            )
