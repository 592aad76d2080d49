"""The loop that joins data, update, log and checkpoints.

A step is counted when its update is done: "step k" in a row, an evaluation or a
checkpoint means k updates done, and the next batch is batch k.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import jax
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum
from roxxel_loader import device_stream

from roxxel_train._agreement import check_same, together
from roxxel_train._arguments import (
    Intervals,
    awaited_metric,
    check_amounts,
    check_counts,
    check_functions,
    check_types,
    checked_curriculum,
)
from roxxel_train._cache import use_compilation_cache
from roxxel_train._compiled import CompiledAhead, compiling_thread
from roxxel_train._evaluation import Evaluator, HeldOut
from roxxel_train._keeper import Keeper
from roxxel_train._log import Logger
from roxxel_train._machine import Machine
from roxxel_train._model_sharding import ModelLayout, on_mesh
from roxxel_train._model_state import signature, take
from roxxel_train._overheard import Overheard
from roxxel_train._past import bind, newest_state, take_weights
from roxxel_train._placement import (
    BatchPlacement,
    accumulation_notes,
    batch_shapes,
    batch_sharding,
    instead_of_set_mesh,
)
from roxxel_train._preflight import Preflight, look_ahead
from roxxel_train._profile import Trace, checked_steps
from roxxel_train._recorder import Recorder
from roxxel_train._run_folder import RunFolder
from roxxel_train._signals import Requests
from roxxel_train._step import choose_step, jit_update
from roxxel_train._summary import RunSummary
from roxxel_train._watchdog import Watchdog
from roxxel_train.distributed import barrier
from roxxel_train.errors import Preempted

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Sequence
    from concurrent.futures import Executor

    from jax.sharding import Mesh, NamedSharding
    from roxxel_ckpt import RestoreReport
    from roxxel_curriculum import Field, Plan

    from roxxel_train._compiled import CompiledShape
    from roxxel_train._model_sharding import ModelSharding
    from roxxel_train._model_state import ModelState
    from roxxel_train._step import LossFunction, TrainStep


class Trainer:
    """Trains a model over a curriculum, and goes on where it was stopped.

    Everything that can be checked without running is checked here: the folder, the
    data against what the folder's run has seen, the loss function for the shape of
    every phase.

    Args:
        model: A Flax NNX module. It is placed on the mesh now; after `run()` it holds
            the newest values. Or a function that returns `(model, optimizer)`: it is
            called such that every device makes only its own part of the arrays, so the
            model may be larger than a device.
        optimizer: Its `nnx.Optimizer`, likewise; None beside a function.
        curriculum: What every step reads.
        loss_fn: `(model, batch)` to a scalar, `(scalar, dict of scalars)` or a dict
            with `"loss"`; all scalars are logged. `batch` has shape
            `(batch_size, seq_len)` and dtype int32. A scalar `"loss_weight"` says over
            how many tokens the means were taken, where a mask makes that differ.
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
        max_to_keep: Newest checkpoints kept, beside the best one; None keeps all.
        timeout: Seconds that a wait for a checkpoint, or for the other processes at the
            start of the run, may take.
        grad_accum_steps: Parts that each batch is cut into, to save memory.
        strict_sharding: Whether a batch that does not divide over the mesh is an error
            instead of being replicated.
        fields: What a batch holds: with more than `"tokens"`, such as `"segment_ids"`
            and `"positions"`, it is a dict of arrays by these names.
        model_sharding: How arrays of the model and the optimizer lie on the mesh:
            `"annotated"`, as their Variables say or as they lie there already, else
            replicated; or `"fsdp"`, which splits those without an annotation over the
            axes that split the rows of a batch.
        eval_curriculum: Held-out data: every evaluation takes the mean of `loss_fn`
            over all of it, the model in its mode for evaluation, and logs `eval_loss`.
        best_metric: Name of the value whose lowest checkpoint is kept beside the newest
            ones: of `loss_fn`, of `eval_fn`, or `"eval_loss"`.
        init_from: Folder of a run or of checkpoints whose newest weights a new run
            begins with; once this run has a checkpoint of its own that counts.
        profile: Steps `(start, stop)` of which JAX writes a trace to `profile/`.
        hang_after_s: Seconds after which the stacks of all threads are logged if a step
            is not done, compiling and evaluations not counted; None never looks.
        flops_per_token: Floating point operations that a token takes, forward and
            backward, for the logged `model_flops_per_s` and `mfu`; by default 6 for
            each parameter, which leaves out the scores of attention.
        check: `"blocks"` compares every block of tokens with its checksum whenever it
            is read, of the held-out data too, so that no damaged token is trained on;
            `"headers"` checks heads, feet and indexes alone.

    Raises:
        ValueError: An argument is out of range, or a batch does not divide.
        TypeError: An argument is of another type, or `loss_fn` returns no loss.
        RunMismatchError: The folder holds another run, or one that saw other data.
        OSError: The folder cannot be written.
    """

    model: nnx.Module
    optimizer: nnx.Optimizer[Any]

    def __init__(
        self,
        model: nnx.Module | Callable[[], tuple[nnx.Module, nnx.Optimizer[Any]]],
        optimizer: nnx.Optimizer[Any] | None = None,
        curriculum: Curriculum | None = None,
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
        max_to_keep: int | None = 3,
        timeout: float = 1000,
        grad_accum_steps: int = 1,
        *,
        strict_sharding: bool = False,
        fields: Sequence[Field] = ("tokens",),
        model_sharding: ModelSharding = "annotated",
        eval_curriculum: Curriculum | None = None,
        best_metric: str = "loss",
        init_from: str | os.PathLike[str] | None = None,
        profile: tuple[int, int] | None = None,
        hang_after_s: float | None = 1800.0,
        flops_per_token: float | None = None,
        check: Literal["headers", "blocks"] = "headers",
    ) -> None:
        self._every = Intervals(eval_every, checkpoint_every, log_every)
        check_counts(
            {"grad_accum_steps": grad_accum_steps, "max_to_keep": max_to_keep},
            optional=["max_to_keep"],
        )
        check_functions(
            {"loss_fn": loss_fn, "eval_fn": eval_fn, "train_step": train_step}
        )
        check_amounts(
            {
                "timeout": timeout,
                "hang_after_s": hang_after_s,
                "flops_per_token": flops_per_token,
            },
            optional=["hang_after_s", "flops_per_token"],
        )
        check_types(
            {
                "eval_curriculum": (eval_curriculum, Curriculum),
                "checkpointer": (checkpointer, Checkpointer),
                "logger": (logger, Logger),
            }
        )
        self.curriculum = checked_curriculum(curriculum)
        chosen_step = choose_step(loss_fn, train_step, grad_accum_steps)
        sharding = batch_sharding(mesh, data_sharding)
        layout = ModelLayout.of(model_sharding, sharding)
        self._mesh = layout.mesh
        with instead_of_set_mesh(self._mesh):
            self.model, self.optimizer = on_mesh(model, optimizer, layout)
        self._hang_after_s = hang_after_s
        self._timeout_s = timeout
        self._placement = BatchPlacement(sharding, strict=strict_sharding)
        devices = self._mesh.devices.flat
        self._machine = Machine(self.model, devices, flops_per_token)

        state = take(self.model, self.optimizer)
        self._model_signature = signature(state)
        self._folder = None if save_path is None else RunFolder(save_path)
        self._max_to_keep = max_to_keep
        self._owns_checkpointer = checkpointer is None and self._folder is not None
        if checkpointer is None and self._folder is not None:
            checkpointer = Checkpointer(
                self._folder.checkpoints,
                self.model,
                self.optimizer,
                max_to_keep,
                timeout,
                best_metric=best_metric,
            )
        self._logger = logger or Logger(save_path)
        past = newest_state(checkpointer, self._folder, self._model_signature)
        self._sampler = bind(
            self.curriculum,
            seed,
            fields,
            past,
            self._folder or "the checkpoints",
            check,
        )
        self._idle = accumulation_notes(
            self._sampler.phases, grad_accum_steps, self._placement
        )
        self.seed = self._sampler.seed
        _, self._past = past
        self._profile = checked_steps(
            profile, self._sampler.total_steps, has_folder=self._folder is not None
        )
        self._init_from: dict[str, Any] | None = None
        self._taken: RestoreReport | None = None
        if init_from is not None and past[0] == 0:
            with instead_of_set_mesh(self._mesh):
                self._taken = take_weights(self.model, init_from)
            self._init_from = {"path": str(init_from), "step": self._taken.step}
        self._kept = Keeper(
            self.model, self.optimizer, checkpointer, self._sampler, self._logger
        )

        graphdef = nnx.graphdef((self.model, self.optimizer))
        self._batches = batch_shapes(self._sampler, self._placement)
        path = None if self._folder is None else self._folder.path
        # Traced now, for every phase: so a wrong loss function shows at once.
        self._updates = CompiledAhead(
            jit_update(graphdef, chosen_step, state),
            state,
            self._batches,
            self._mesh,
            path,
        )
        held_out: HeldOut | None = None
        if eval_curriculum is not None:
            data = eval_curriculum.sampler(seed, fields=fields, check=check)
            held_out = HeldOut(data, self._placement, loss_fn, graphdef, state, path)
        self._evaluator = Evaluator(eval_fn, held_out)
        known = {*self._updates.names, *self._evaluator.names}
        self._awaited = (
            awaited_metric(best_metric, known, eval_fn=eval_fn)
            if self._owns_checkpointer
            else None
        )
        self._requests: Requests | None = None

    def plan(self) -> Plan:
        """Return what every phase takes from every source; reads no tokens.

        A run that has begun is planned with what is fixed of its past.
        """
        return self.curriculum.plan(self.seed, self._past)

    def preflight(self) -> Preflight:
        """Find out before the first step what the run takes; compiles every phase.

        Raises:
            ValueError: Another process has other data, curriculum or seed.
        """
        self._check_processes()
        use_compilation_cache()
        with compiling_thread() as compiler:
            self._updates.begin(compiler, self._batches)
        num_saves = -(-self._sampler.total_steps // self._every.checkpoint_every)
        if self._max_to_keep is not None:
            # The newest ones, the best one, and the one that is being written.
            num_saves = min(num_saves, self._max_to_keep + 2)
        return look_ahead(
            self._updates.shapes(),
            take(self.model, self.optimizer),
            self._folder.checkpoints
            if self._folder and self._owns_checkpointer
            else None,
            num_saves,
        )

    def save(self) -> None:
        """Ask a run that is going on for a checkpoint; from any thread, or `eval_fn`.

        It is written after the step that is running, as SIGUSR1 asks for one too. With
        several processes one of them may ask; all save together a few steps later.

        Raises:
            RuntimeError: No run is going on, or it has no folder to save to.
        """
        if self._kept.checkpointer is None:
            raise RuntimeError("this trainer has nowhere to save to; give save_path")
        if self._requests is None:
            raise RuntimeError(
                "no run is going on; what the last one did is saved already"
            )
        self._requests.ask_to_save()

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
            TimeoutError: A process of this program has not come to its own `run()`.
            roxxel_ckpt.CheckpointError: A checkpoint cannot be written or read.
            Exception: What `loss_fn`, `eval_fn` or the data raised, after the last
                whole state was saved.
        """
        use_compilation_cache()
        begin = time.perf_counter()
        total = self._sampler.total_steps
        barrier("start of the run", self._timeout_s)
        with ExitStack() as stack:
            stack.enter_context(instead_of_set_mesh(self._mesh))
            with together():
                log, requests, watch, trace, compiler = self._open(stack)
            start = self._begin(log)
            kept = self._kept
            recorder = Recorder(
                log,
                self._sampler,
                self._every.log_every,
                start,
                kept.interval,
                self._machine,
            )
            self._compile_ahead(start, log, compiler)
            stack.callback(self._updates.close)
            stack.callback(self._evaluator.close)
            stack.callback(self._kept.close)
            batches = stack.enter_context(
                device_stream(self._sampler, start, total, self._placement)
            )
            recorder.stats = lambda: batches.stats
            stack.push(kept.leaving(recorder))
            if kept.owes_evaluation:
                self._evaluate(recorder, watch)
                if asked := requests.stop(start):
                    raise self._preempted(asked, recorder)

            for step, batch in enumerate(batches, start + 1):
                with _apart("compile_s", recorder, watch):
                    update = self._updates.program(batch, self._is_stopping, log.status)
                if update is None:
                    raise self._preempted(requests.stop(step - 1), recorder)
                trace.at(step - 1, recorder.drain)
                watch.begin(step)
                kept.tree, scalars = update(kept.tree, batch)
                kept.step = step
                recorder.push(step, scalars)
                if self._is_due(step, self._every.eval_every):
                    self._evaluate(recorder, watch)
                if asked := requests.stop(step):
                    raise self._preempted(asked, recorder)
                if requests.save(step) or self._is_due(
                    step, self._every.checkpoint_every
                ):
                    kept.save(recorder)

            recorder.drain()
            kept.show()
            kept.check_finite(recorder)
            return RunSummary(
                start_step=start,
                step=kept.step,
                total_steps=total,
                loss=recorder.last.get("loss"),
                eval_loss=self._evaluator.eval_loss,
                evaluation=self._evaluator.result,
                tokens=recorder.new_tokens,
                seconds=time.perf_counter() - begin,
                waited_s=recorder.waited_s,
                save_path=None if self._folder is None else self._folder.path,
            )

    def _is_due(self, step: int, every: int | None) -> bool:
        return step == self._sampler.total_steps or (
            every is not None and step % every == 0
        )

    def _is_stopping(self) -> bool:
        """Return whether to give up a wait; several processes wait to the end."""
        return self._requests is not None and self._requests.is_stopping()

    def _open(
        self, stack: ExitStack
    ) -> tuple[Logger, Requests, Watchdog, Trace, Executor]:
        """Claim the folder and open what must be closed again."""
        # The first of all: every process must have made as many, whatever fails below.
        requests = self._requests = stack.enter_context(Requests())
        stack.callback(setattr, self, "_requests", None)
        if self._folder is not None and jax.process_index() == 0:
            stack.enter_context(self._folder.claimed())
            # Before anything else is written: it says whose the folder is.
            self._folder.begin(
                seed=self.seed,
                data=self._sampler.state(0),
                model=self._model_signature,
                init_from=self._init_from,
            )
        log = stack.enter_context(self._logger)
        stack.enter_context(Overheard("roxxel_ckpt", log))
        # Waited for last, when the state is safe: no compilation can be broken off.
        compiler = stack.enter_context(compiling_thread(log.info))
        if self._kept.checkpointer is not None:
            stack.callback(self._kept.checkpointer.close)
        path = None if self._folder is None else self._folder.path
        watch = stack.enter_context(Watchdog(self._hang_after_s, log.warning, path))
        trace = stack.enter_context(Trace(self._profile, path, log.info))
        return log, requests, watch, trace, compiler

    def _check_processes(self) -> None:
        """Check that all processes are in the same run.

        Raises:
            ValueError: One of them is not.
        """
        order = [self._sampler.state(0), repr(self._sampler.phases)]
        check_same("corpus, curriculum or seed", json.dumps(order, sort_keys=True))
        check_same("model or optimizer", self._model_signature)

    def _compile_ahead(self, start: int, log: Logger, compiler: Executor) -> None:
        """Compile in the background what is still needed, in the order of need."""
        phases = zip(self._sampler.phases, self._batches, strict=True)
        needed = [batch for phase, batch in phases if phase.stop > start]

        def tell(shape: CompiledShape) -> None:
            line = str(shape)
            # A second signal does not wait for the compiler: then the log is closed.
            with suppress(RuntimeError):
                log.info(line)

        # A first checkpoint may be due while later phases are still being compiled.
        self._updates.begin(compiler, needed[:1], tell)
        if needed:
            self._kept.compile_ahead(compiler)
        self._updates.begin(compiler, needed, tell)
        if needed or self._kept.owes_evaluation:
            self._evaluator.compile_ahead(compiler)

    def _begin(self, log: Logger) -> int:
        """Restore the run or start it, say so, and return the updates done."""
        total = self._sampler.total_steps
        self._check_processes()
        start = self._kept.restore()
        with together():
            owes = self._kept.owes_evaluation
            dropped = log.cut_metrics(start, evaluated=not owes)
        if start == total:
            log.info(f"already complete: {total} of {total} steps are done")
        elif start:
            log.info(f"resumed from step {start} of {total}")
        else:
            phases = len(self.curriculum.phases)
            plural = "" if phases == 1 else "s"
            log.info(f"starts: {total} steps in {phases} phase{plural}")
            if self._init_from is not None:
                path, step = self._init_from["path"], self._init_from["step"]
                log.info(f"begins with the weights of step {step} of {path}")
                if self._taken is not None and not self._taken.is_exact:
                    # The terminal has been warned when the weights were taken.
                    log.info(f"the model has changed: {self._taken}", terminal=False)
        if dropped:
            log.info(
                f"{dropped} rows of metrics after step {start} were dropped; "
                "they are written again"
            )
        if start < total:
            shapes = [(p.batch_size, p.seq_len) for p in self._sampler.phases]
            for note in (*self._placement.notes(shapes), *self._idle):
                log.info(note)
        return start

    def _evaluate(self, recorder: Recorder, watch: Watchdog) -> None:
        """Evaluate the state as it is, unless a stop is asked for meanwhile."""
        self._kept.owes_evaluation = bool(self._evaluator)
        if not self._evaluator:
            return
        recorder.drain()
        with _apart("eval_s", recorder, watch):
            values = self._evaluator(self._kept, self._is_stopping)
        if values is not None:
            recorder.evaluation(self._kept.step, values)
            self._kept.owes_evaluation = False
            awaited, self._awaited = self._awaited, None
            if awaited and awaited not in recorder.metrics(self._kept.step):
                self._logger.warning(
                    f"eval_fn returned no number named best_metric={awaited!r}; a "
                    "checkpoint without one is never kept as the best, so return "
                    f"{{{awaited!r}: ...}}"
                )

    def _preempted(self, asked: str | None, recorder: Recorder) -> Preempted:
        """Save what is done and return what ends the run."""
        self._kept.save(recorder)
        can_go_on = self._kept.checkpointer is not None
        return Preempted(self._kept.step, asked or "a signal", saved=can_go_on)


@contextmanager
def _apart(name: str, recorder: Recorder, watch: Watchdog) -> Generator[None]:
    """Count the time of a block under `name`, neither as training nor as a hang."""
    with watch.paused(), recorder.apart(name):
        yield
