"""The loop that joins data, updates, log and checkpoints.

A step is counted when its update is done: "step k" in a row, an evaluation or a
checkpoint means k updates done, and the next batch is batch k.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
from flax import nnx
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum
from roxxel_loader import device_stream

from roxxel_train._arguments import (
    Intervals,
    check_amounts,
    check_best_metric,
    check_counts,
    check_functions,
    check_types,
    given,
)
from roxxel_train._cache import use_compilation_cache
from roxxel_train._compiled import CompiledAhead, compiling_thread
from roxxel_train._log.forward import WarningForwarder
from roxxel_train._log.logger import Logger
from roxxel_train._machine import Machine
from roxxel_train._model_sharding import ModelLayout, on_mesh
from roxxel_train._observe.evaluation import Evaluator, HeldOut
from roxxel_train._observe.recorder import Recorder
from roxxel_train._placement import (
    BatchPlacement,
    accumulation_notes,
    batch_shapes,
    batch_sharding,
    instead_of_set_mesh,
)
from roxxel_train._preflight import Preflight, find_problems
from roxxel_train._processes import Processes
from roxxel_train._profile import Trace, checked_steps
from roxxel_train._run_folder import RunFolder
from roxxel_train._run_state import RunState
from roxxel_train._step import choose_step, jit_update
from roxxel_train._summary import RunSummary
from roxxel_train.errors import Preempted

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Executor

    from jax.sharding import Mesh, NamedSharding
    from roxxel_curriculum import Field, Plan

    from roxxel_train._compiled import CompiledShape
    from roxxel_train._model_sharding import ModelSharding
    from roxxel_train._model_state import ModelState
    from roxxel_train._processes import Request
    from roxxel_train._step import LossFunction, TrainStep


class Trainer:
    """Trains a model over a curriculum, and resumes where it was stopped.

    The constructor checks everything that can be checked without running: the folder,
    the data against what the run in the folder has read, and the loss function for the
    shape of every phase.

    Args:
        model: A Flax NNX module. The constructor puts it on the mesh; after `run()` it
            has the newest values. Or a function that returns `(model, optimizer)`: the
            function is compiled such that every device creates only its own part of the
            arrays, so the model may be larger than a device.
        optimizer: The `nnx.Optimizer` of the model; None beside a function.
        curriculum: What every step reads.
        loss_fn: `(model, batch)` to a scalar, a tuple or list whose first value is the
            loss, or a nested dict with `"loss"` or with one scalar. Further scalars are
            logged by their path (`aux/grad/x`); arrays and None are not. `batch` has
            shape `(batch_size, seq_len)` and dtype int32. A scalar `"loss_weight"` is
            the number of tokens that the means are taken over, where a mask changes
            that number.
        save_path: Folder of the run: `checkpoints/`, `metrics.jsonl`, `system.log` and
            `run.json`. None writes nothing.
        eval_fn: Called with a `ModelState` on every process; returns text, a number, a
            dict of these, or None. Process 0 logs the result.
        eval_every: Updates between evaluations; None evaluates after the last only.
        checkpoint_every: Updates between checkpoints; the last update is always saved.
        log_every: Updates between rows; the first and the last are always logged.
        seed: Seed of the order of the data.
        mesh: Devices to use; by default all of them along one axis, `"data"`.
        data_sharding: Sharding of a batch over the mesh; by default its rows over the
            mesh's first axis.
        checkpointer: Replaces the one made under `save_path`.
        logger: Replaces the one made under `save_path`.
        train_step: `(model, optimizer, batch)`, updates both in place and returns what
            `loss_fn` may return; replaces the gradient of `loss_fn`. The trainer
            compiles it, so it needs no `nnx.jit`.
        max_to_keep: Newest checkpoints to keep, besides the best one; None keeps all.
        timeout: Longest wait in seconds for a checkpoint, and for the other processes
            at the start of the run.
        grad_accum_steps: Parts of each batch, to save memory. When a part does not
            divide over the devices, some are idle: the log says so at the start, and
            `strict_sharding` makes it an error.
        strict_sharding: Refuse a batch that does not divide over the mesh, instead of
            replicating it.
        fields: Fields of a batch. With more fields than `"tokens"`, such as
            `"segment_ids"` and `"positions"`, a batch is a dict of arrays by field.
        model_sharding: Sharding of the arrays of the model and the optimizer.
            `"annotated"` follows the annotations of their Variables or the shardings
            that the arrays have on the mesh, and replicates the rest; `"fsdp"` also
            splits large arrays without an annotation over the axes that split the rows
            of a batch, except `"replica"`; names of axes replace those axes.
        eval_curriculum: Held-out data. Every evaluation computes the mean of `loss_fn`
            over all of it, in the model's evaluation mode, and logs `eval_loss`.
        best_metric: The value whose lowest checkpoint is kept besides the newest ones:
            a value of `loss_fn`, of `eval_fn`, or `"eval_loss"`. By default the
            held-out loss where there is one, else the mean loss since the last
            checkpoint.
        init_from: Folder of a run or of checkpoints whose newest weights a new run
            starts with; a run that has a checkpoint ignores it.
        profile: Steps `(start, stop)` whose JAX trace is written to `profile/`.
        hang_after_s: When a step takes longer than this, in seconds, without compiling
            and evaluating, the stacks of all threads are logged, and several processes
            end. None never looks for such steps.
        flops_per_token: Floating point operations of a token, forward and backward, for
            the logged `model_flops_per_s` and `mfu`. The default is 6 for each
            parameter, which leaves out the scores of attention.
        check: `"blocks"` verifies the checksum of every block of tokens that is read,
            of the held-out data too, so that no damaged token is trained on;
            `"headers"` verifies heads, feet and indexes only.

    Raises:
        ValueError: An argument is out of range, or a batch does not divide.
        TypeError: An argument has another type, or `loss_fn` returns no loss.
        RunMismatchError: The folder holds another run, or one that read other data.
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
        best_metric: str | None = None,
        init_from: str | os.PathLike[str] | None = None,
        profile: tuple[int, int] | None = None,
        hang_after_s: float | None = 1800.0,
        flops_per_token: float | None = None,
        check: Literal["headers", "blocks"] = "headers",
    ) -> None:
        self._every = Intervals(eval_every, checkpoint_every, log_every)
        check_counts(
            grad_accum_steps=grad_accum_steps, **given(max_to_keep=max_to_keep)
        )
        check_amounts(
            timeout=timeout,
            **given(hang_after_s=hang_after_s, flops_per_token=flops_per_token),
        )
        check_functions(loss_fn=loss_fn, eval_fn=eval_fn, train_step=train_step)
        check_types(Curriculum, curriculum=curriculum, eval_curriculum=eval_curriculum)
        check_types(Checkpointer, checkpointer=checkpointer)
        check_types(Logger, logger=logger)
        if curriculum is None:
            raise TypeError("curriculum is missing; give what every step reads")
        self.curriculum = curriculum
        self._timeout_s, self._hang_after_s = timeout, hang_after_s
        self._max_to_keep = max_to_keep
        chosen_step = choose_step(loss_fn, train_step, grad_accum_steps)

        # Where everything is: the folder, the log, and the arrays on the mesh.
        self._folder = None if save_path is None else RunFolder(save_path)
        self._run_path = None if self._folder is None else self._folder.path
        self._logger = logger or Logger(save_path)
        sharding = batch_sharding(mesh, data_sharding)
        self._placement = BatchPlacement(sharding, strict=strict_sharding)
        layout = ModelLayout.of(model_sharding, sharding)
        self._mesh = layout.mesh
        with instead_of_set_mesh(self._mesh):
            self.model, self.optimizer = on_mesh(model, optimizer, layout)
        devices = self._mesh.devices.flat
        self._machine = Machine(self.model, devices, flops_per_token)

        # What was done before: the run's own checkpoints, or the weights of another.
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
        self._state = RunState(
            self.model, self.optimizer, self._folder, checkpointer, checkpoint_every
        )
        self._sampler = self._state.bind(curriculum, seed, fields, check)
        self.seed = self._sampler.seed
        self._idle = accumulation_notes(
            self._sampler.phases, grad_accum_steps, self._placement
        )
        self._profile = checked_steps(
            profile, self._sampler.total_steps, has_folder=self._folder is not None
        )
        if init_from is not None:
            with instead_of_set_mesh(self._mesh):
                self._state.load_weights(init_from)

        # The programs, traced for every phase so that a wrong loss_fn fails here.
        arrays = self._state.arrays
        graphdef = nnx.graphdef((self.model, self.optimizer))
        self._batches = batch_shapes(self._sampler, self._placement)
        self._updates = CompiledAhead(
            jit_update(graphdef, chosen_step, arrays),
            arrays,
            self._batches,
            self._mesh,
            self._run_path,
        )
        held_out = eval_data = None
        if eval_curriculum is not None:
            eval_data = eval_curriculum.sampler(seed, fields=fields, check=check)
            held_out = HeldOut(
                eval_data, self._placement, loss_fn, graphdef, arrays, self._run_path
            )
        self._evaluator = Evaluator(eval_fn, held_out)
        self._unseen_metric = None
        if self._owns_checkpointer:
            self._unseen_metric = check_best_metric(
                best_metric,
                {*self._updates.names, *self._evaluator.names},
                has_eval_fn=eval_fn is not None,
            )
        # What all processes must have alike, or they would wait for each other forever.
        self._settings: dict[str, object] = {
            "data, curriculum or seed": [
                self._sampler.state(0),
                repr(self._sampler.phases),
            ],
            "model or optimizer": self._state.signature,
            **vars(self._every),
            "evaluation": [eval_fn is not None, eval_data and eval_data.state(0)],
            "save_path or checkpointer": self._state.checkpointer is not None,
            "max_to_keep or best_metric": [
                max_to_keep and int(max_to_keep),
                best_metric,
            ],
            "grad_accum_steps": int(grad_accum_steps),
            "sharding": [str(sharding.spec), str(sharding.mesh.shape), model_sharding],
            "fields": fields,
        }
        self._processes: Processes | None = None

    def plan(self) -> Plan:
        """Return what every phase reads from every source, without reading tokens.

        The past of a run that has begun is fixed in the plan.
        """
        return self.curriculum.plan(self.seed, self._state.past)

    def preflight(self) -> Preflight:
        """Find out before the first step what the run needs; compiles every phase."""
        use_compilation_cache()
        with compiling_thread() as compiler:
            self._updates.begin(compiler, self._batches)
        num_checkpoints = -(-self._sampler.total_steps // self._every.checkpoint_every)
        if self._max_to_keep is not None:
            # The newest ones, the best one, and the one that is being written.
            num_checkpoints = min(num_checkpoints, self._max_to_keep + 2)
        owns_folder = self._folder is not None and self._owns_checkpointer
        return find_problems(
            self._updates.shapes(),
            self._state.arrays,
            self._folder.checkpoints if owns_folder and self._folder else None,
            num_checkpoints,
        )

    def save(self) -> None:
        """Request a checkpoint of the run that is going on; from any thread.

        The checkpoint is written after the current step, as after SIGUSR1. With several
        processes one request is enough: all save at the same step, a few steps later.

        Raises:
            RuntimeError: No run is going on, or the run has no folder.
        """
        if self._state.checkpointer is None:
            raise RuntimeError("this trainer has nowhere to save to; give save_path")
        if self._processes is None:
            raise RuntimeError(
                "no run is going on, and the last run is saved already; "
                "call save() while run() is running"
            )
        self._processes.ask_to_save()

    def run(self) -> RunSummary:
        """Train until the curriculum is done, from the newest sound checkpoint on.

        Returns:
            What was done. A run that is complete already returns at once.

        Raises:
            Preempted: SIGTERM or SIGINT stopped the run; the state is saved. It is a
                `SystemExit` with code 75.
            NonFiniteError: A loss or a parameter became NaN or infinite.
            RunMismatchError: Another program runs in the folder, or this trainer's
                model is spoilt by an earlier error.
            ValueError: A setting differs between processes.
            roxxel_ckpt.CheckpointError: A checkpoint cannot be written or read.
            Exception: An error of `loss_fn`, `eval_fn` or the data, after the last
                whole state was saved.

        With several processes `Preempted`, `NonFiniteError` and the `ValueError` are
        raised on all. Any other error ends all processes with exit code 1, after the
        cause was logged, and does not return to the caller.
        """
        began = time.perf_counter()
        use_compilation_cache()
        state = self._state
        with self._open() as job:
            start, recorder = state.step, job.recorder
            self._train(job)
            recorder.drain()
            state.show()
            state.check_finite(recorder)
            return RunSummary(
                start_step=start,
                step=state.step,
                total_steps=self._sampler.total_steps,
                loss=recorder.last_loss,
                eval_loss=self._evaluator.eval_loss,
                evaluation=self._evaluator.result,
                tokens=recorder.new_tokens,
                seconds=time.perf_counter() - began,
                waited_s=recorder.waited_s,
                save_path=self._run_path,
            )

    def _train(self, job: _Job) -> None:
        """Make the updates that are left, with their evaluations and checkpoints."""
        state, recorder = self._state, job.recorder
        if state.owes_evaluation:
            self._evaluate(job)
            self._act(job)
        for phase, form in zip(self._sampler.phases, self._batches, strict=True):
            if phase.stop <= state.step:
                continue
            update = self._program(form, job)
            for step in range(state.step + 1, phase.stop + 1):
                batch = next(job.batches)
                job.trace.at(step - 1, recorder.drain)
                job.processes.before(step)
                state.arrays, scalars = update(state.arrays, batch)
                state.step = step
                recorder.push(step, scalars)
                if self._is_due(step, self._every.eval_every):
                    self._evaluate(job)
                self._act(job)

    def _act(self, job: _Job) -> None:
        """Stop or save after the current step, if that is due or requested."""
        step = self._state.step
        request = job.processes.after(step)
        if request is not None and request.kind == "stop":
            raise self._preempted(request, job)
        if request is not None or self._is_due(step, self._every.checkpoint_every):
            self._save(job)

    def _save(self, job: _Job) -> None:
        with job.processes.paused("save"):
            self._state.save(job.recorder, job.log)

    def _evaluate(self, job: _Job) -> None:
        """Evaluate the state, unless a stop is requested meanwhile."""
        state = self._state
        state.owes_evaluation = bool(self._evaluator)
        if not self._evaluator:
            return
        job.recorder.drain()
        with job.excluded("evaluate", "eval_s"):
            values = self._evaluator(state, job.processes.is_stopping)
        if values is None:
            return
        job.recorder.evaluation(state.step, values)
        state.owes_evaluation = False
        name, self._unseen_metric = self._unseen_metric, None
        if name is not None and name not in job.recorder.metrics():
            job.log.warning(
                f"eval_fn returned no number named best_metric={name!r}; a checkpoint "
                f"without it is never the best, so return {{{name!r}: ...}}"
            )

    def _program(self, form: Any, job: _Job) -> Callable[[Any, Any], Any]:
        """Return the compiled update for the batches of a phase; wait for it.

        Raises:
            Preempted: A stop is requested during the wait.
        """
        with job.excluded("compile", "compile_s"):
            program = self._updates.program(
                form, job.processes.is_stopping, job.log.status
            )
        if program is None:
            raise self._preempted(job.processes.after(self._state.step), job)
        return program

    def _preempted(self, request: Request | None, job: _Job) -> Preempted:
        """Save the state and return the exception that ends the run."""
        self._save(job)
        is_saved = self._state.checkpointer is not None
        name = "a signal" if request is None else request.signal_name
        return Preempted(self._state.step, name, saved=is_saved)

    def _is_due(self, step: int, every: int | None) -> bool:
        return step == self._sampler.total_steps or (
            every is not None and step % every == 0
        )

    @contextmanager
    def _open(self) -> Generator[_Job]:
        """Open what a run needs and restore its state; close everything at the end."""
        state, log = self._state, self._logger
        with ExitStack() as stack:
            stack.enter_context(instead_of_set_mesh(self._mesh))
            processes = self._processes = stack.enter_context(
                Processes(
                    report=lambda text: log.warning(text, terminal=False),
                    flush=log.flush,
                    hang_after_s=self._hang_after_s,
                    timeout_s=self._timeout_s,
                )
            )
            stack.callback(setattr, self, "_processes", None)
            # Inside the stack: what closes there may wait for a process that failed.
            with processes.failing_together():
                processes.check_same(self._settings)
                self._claim(stack)
                stack.enter_context(log)
                stack.enter_context(WarningForwarder("roxxel_ckpt", log))
                # Left after the state is saved: a compilation cannot be interrupted.
                compiler = stack.enter_context(compiling_thread(log.info))
                if state.checkpointer is not None:
                    stack.callback(state.checkpointer.close)
                trace = stack.enter_context(
                    Trace(self._profile, self._run_path, log.info)
                )
                with processes.paused("restore"):
                    self._restore(log)
                self._compile_ahead(compiler, log)
                for compiled in (self._updates, self._evaluator, state):
                    stack.callback(compiled.close)
                recorder = Recorder(
                    log,
                    self._sampler,
                    self._every.log_every,
                    state.step,
                    state.losses,
                    self._machine,
                )
                total = self._sampler.total_steps
                batches = stack.enter_context(
                    device_stream(self._sampler, state.step, total, self._placement)
                )
                recorder.read_stats = lambda: batches.stats
                stack.push(lambda _, error, __: state.leave(error, recorder, log))
                yield _Job(log, processes, recorder, trace, batches)

    def _claim(self, stack: ExitStack) -> None:
        """Lock the folder of the run, and write `run.json` at the first start."""
        if self._folder is not None and jax.process_index() == 0:
            stack.enter_context(self._folder.claimed())
            # Before any other file: `run.json` marks the folder as a run.
            self._folder.begin(
                seed=self.seed,
                data=self._sampler.state(0),
                model=self._state.signature,
                init_from=self._state.weights_from,
            )

    def _restore(self, log: Logger) -> None:
        """Restore the state, cut the rows after it, and log what the run does."""
        start, total = self._state.restore(), self._sampler.total_steps
        dropped = log.cut_metrics(start, evaluated=not self._state.owes_evaluation)
        if start == total:
            log.info(f"already complete: {total} of {total} steps are done")
        elif start:
            log.info(f"resumed from step {start} of {total}")
        else:
            self._log_start(log)
        if dropped:
            log.info(
                f"{dropped} rows of metrics after step {start} were dropped; "
                "the run writes them again"
            )
        if start < total:
            shapes = [(p.batch_size, p.seq_len) for p in self._sampler.phases]
            for note in (*self._placement.notes(shapes), *self._idle):
                log.info(note)

    def _log_start(self, log: Logger) -> None:
        phases = len(self.curriculum.phases)
        plural = "" if phases == 1 else "s"
        log.info(f"starts: {self._sampler.total_steps} steps in {phases} phase{plural}")
        source, report = self._state.weights_from, self._state.weights_report
        if source is not None:
            log.info(
                f"begins with the weights of step {source['step']} of {source['path']}"
            )
        if report is not None and not report.is_exact:
            # The terminal has the warning that the checkpointer logged.
            log.info(f"the model has changed: {report}", terminal=False)

    def _compile_ahead(self, compiler: Executor, log: Logger) -> None:
        """Compile in the background what is needed from here on, in that order."""
        start = self._state.step
        phases = zip(self._sampler.phases, self._batches, strict=True)
        needed = [form for phase, form in phases if phase.stop > start]

        def report(shape: CompiledShape) -> None:
            # After a second signal the compiler may outlive the log.
            with suppress(RuntimeError):
                log.info(str(shape))

        # A first checkpoint may be due while later phases are still being compiled.
        self._updates.begin(compiler, needed[:1], report)
        if needed:
            self._state.compile_ahead(compiler)
        self._updates.begin(compiler, needed, report)
        if needed or self._state.owes_evaluation:
            self._evaluator.compile_ahead(compiler)


@dataclass(frozen=True)
class _Job:
    """What is open while a run goes on."""

    log: Logger
    processes: Processes
    recorder: Recorder
    trace: Trace
    batches: Iterator[Any]

    @contextmanager
    def excluded(self, what: str, field: str) -> Generator[None]:
        """Count a block under `field`, neither as training nor as a step that hangs."""
        with self.processes.paused(what), self.recorder.excluded(field):
            yield
