"""One call of `Trainer.run`, from the lock of the folder to the last line of the log.

A session opens the resources of a run, restores its state, starts to compile, and logs
events. When the trainer's loop ends, the session closes all resources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import jax
from roxxel_curriculum.run_log import start_fields
from roxxel_loader import device_stream
from roxxel_store.files import replace_file

from roxxel_train._files.folder import CONFIG
from roxxel_train._log.logger import Logger, WarningForwarder
from roxxel_train._observe.machine import Machine
from roxxel_train._observe.recorder import Recorder
from roxxel_train._observe.stragglers import Stragglers
from roxxel_train._run import events
from roxxel_train._run.events import RunSummary
from roxxel_train._run.garbage import Garbage
from roxxel_train._run.profile import Trace
from roxxel_train._step.compiled import compiling_thread
from roxxel_train._step.fed import FedRows
from roxxel_train._step.placement import instead_of_set_mesh
from roxxel_train._step.repeated import Repeated
from roxxel_train._together.processes import Processes
from roxxel_train.config import CONTINUOUS
from roxxel_train.errors import LogWriteError, Preempted
from roxxel_train.run_folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from jax.sharding import Mesh
    from roxxel_loader import DeviceStream

    from roxxel_train._run.evaluation import Evaluator
    from roxxel_train._run.state import RunState
    from roxxel_train._step.compiled import CompiledAhead, CompiledShape
    from roxxel_train._step.placement import BatchPlacement
    from roxxel_train._together.processes import Request
    from roxxel_train.config import Declaration, TrainConfig
    from roxxel_train.goodput import Goodput

_FLAGS = {
    "XLA_FLAGS": lambda: os.environ.get("XLA_FLAGS", ""),
    "matmul_precision": lambda: str(jax.config.jax_default_matmul_precision),  # pyright: ignore[reportAttributeAccessIssue] - JAX declares its options at run time
    "x64": lambda: jax.config.jax_enable_x64,  # pyright: ignore[reportAttributeAccessIssue] - as above
}
_VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint", "numpy")
_COMMIT = (
    *("git", "--no-optional-locks", "describe"),
    *("--always", "--dirty", "--abbrev=12", "--exclude=*"),
)
_GIT_S = 5.0
"""Longest wait for git, which reads all files of a repository."""


@dataclass(eq=False, repr=False)
class Session:
    """The parts of a trainer, and the resources open during a call of `Trainer.run`.

    Attributes:
        shapes: Shape, dtype and sharding of the batches of each phase.
        notes: Sentences about the sharding, for the log.
        warnings: Sentences about the model and the processes, for the log.
        traced: Steps whose JAX trace is written.
        declaration: The config file that declares the run; None if there is none.
        is_open: Whether a run is open; only then do the attributes below exist.
    """

    config: TrainConfig
    log: Logger
    mesh: Mesh
    placement: BatchPlacement
    state: RunState
    updates: CompiledAhead
    shapes: Sequence[Any]
    evaluator: Evaluator
    notes: Sequence[str]
    warnings: Sequence[str]
    traced: range
    declaration: Declaration | None = None
    is_open: bool = False
    machine: Machine = field(init=False)
    processes: Processes = field(init=False)
    garbage: Garbage = field(init=False)
    trace: Trace = field(init=False)
    batches: DeviceStream = field(init=False)
    recorder: Recorder = field(init=False)
    _start: int | None = field(init=False, default=None)
    _logs: list[Logger] = field(init=False)
    _stop_reason: str | None = field(init=False, default=None)
    _was_snapshot: bool | None = field(init=False, default=None)
    _repeated: Repeated | None = field(init=False, default=None)
    _until: int = field(init=False, default=0)
    _planned: events.PlannedLines = field(init=False)

    @contextmanager
    def opened(self, until: int | None = None) -> Generator[None]:
        """Open the resources of a run and restore its state; close all at the end.

        A run with `until` ends there, unless it is complete earlier.
        """
        state, log, sampler = self.state, self.log, self.state.sampler
        self._began_s = time.perf_counter()
        self._start = self._stop_reason = self._was_snapshot = None
        self._logs = [log]
        self._until = sampler.total_steps if until is None else until
        self.machine = Machine(
            state.model, self.mesh.devices.flat, self.config.flops_per_token
        )

        def report(text: str) -> None:
            log.warning(text, terminal=False)
            log.flush()

        # `processes` and `recorder` must not refer to the session: in a reference
        # cycle the model's arrays would live until Python's garbage collector runs.
        self.processes = Processes(
            report=report,
            hang_after_s=self.config.hang_after_s,
            timeout_s=self.config.timeout,
        )
        self.garbage = Garbage(self.config.gc_every)
        with self.garbage.kept(), ExitStack() as stack:
            stack.enter_context(instead_of_set_mesh(self.mesh))
            stack.enter_context(self.processes)
            self.is_open = True
            stack.callback(vars(self).update, is_open=False)
            # Enter this context after the stack: an error must end all processes before
            # the stack closes, which may wait for a failed process.
            with self.processes.failing_together():
                self.processes.check_same(self._settings())
                stack.enter_context(state.run_lock())
                stack.enter_context(log)
                if state.path is not None and log.log_dir != state.path:
                    # Starts, saves and endings are also in the folder of the run.
                    self._logs.append(
                        stack.enter_context(Logger(state.path, terminal=False))
                    )
                stack.enter_context(WarningForwarder("roxxel_ckpt", log))
                stack.push(lambda _, error, __: self._log_ending(error))
                # Enter this context early: its exit waits for the compiler, and must
                # come after the last save.
                compiler = stack.enter_context(compiling_thread(log.info))
                if state.checkpointer is not None:
                    stack.callback(state.checkpointer.close)
                    state.checkpointer.check_shared(begins=not state.run_lock_begins)
                self.trace = Trace(self.traced, state.path, log.info)
                stack.callback(self.trace.close)
                with self.processes.paused("restore"):
                    self._restore()
                self.compile_ahead(compiler)
                self._warm_up()
                if self.config.verify_every is not None:
                    self._repeated = Repeated(
                        self.config.verify_every, state.step, self.mesh
                    )
                    stack.callback(self._repeated.close)
                stack.callback(self.updates.close)
                stack.callback(state.finite.close)
                if self.evaluator.held_out is not None:
                    stack.callback(self.evaluator.held_out.programs.close)
                rows = FedRows(sampler, self.config.grad_accum_steps)
                self.batches = batches = stack.enter_context(
                    device_stream(rows, state.step, self._last_step, self.placement)
                )
                self.recorder = recorder = Recorder(
                    log,
                    sampler,
                    self.config.log_every,
                    state.step,
                    state.losses,
                    state.ledger,
                    self.machine,
                    self.updates.found.lookups,
                    lambda: batches.stats,
                    self._planned.log,
                    Stragglers(self.processes.own_times, log.warning),
                    state.window.so_far(state.arrays),
                )
                logs = self._logs
                stack.push(lambda _, error, __: state.leave(error, recorder, logs))
                yield

    def update_of(self, batch: Any) -> Callable[[Any, Any], Any] | None:
        """Wait for the compiled update of a batch; None if `Trainer.stop` ends the run.

        Raises:
            Preempted: A signal ends the run.
        """
        with self._excluded("compile", "compile_s"):
            program = self.updates.program(
                batch, self.processes.is_stopping, self.log.status
            )
        if program is None:
            self._end(self.processes.after(self.state.step))
            return None
        return program if self._repeated is None else self._repeated.of(program)

    def evaluate(self) -> None:
        """Evaluate the state, if the run evaluates; a signal may end this early."""
        state, evaluator = self.state, self.evaluator
        state.is_evaluation_due = bool(evaluator)
        if not evaluator:
            return
        self.recorder.drain()
        began_s = time.perf_counter()
        with self._excluded("evaluate", "eval_s"):
            values = evaluator(state.arrays, state.shown, self.processes.is_stopping)
        if values is None:
            return
        seconds = time.perf_counter() - began_s
        self.log.info(events.evaluation(state.step, seconds, values))
        self.recorder.evaluation(state.step, values)
        state.is_evaluation_due = False
        warning = evaluator.unmeasured(self.recorder.metrics())
        if warning is not None:
            self.log.warning(warning)

    def begin_run(self) -> bool:
        """Do what is due before the first update; return whether none follows.

        The first state of a branch is saved, so that it does not need its parent.
        """
        if self.state.is_unsaved_branch:
            self._save()
        if self.end_if_reached():
            return True
        if self.state.is_evaluation_due:
            self.evaluate()
            return self.act()
        return False

    def act(self) -> bool:
        """Save if a checkpoint is due; return whether the call of `run` ends here.

        Raises:
            Preempted: A signal ends the run.
            LogWriteError: The log cannot be written.
        """
        failure = self.log.failure
        if failure is not None:
            self.processes.fail(str(failure))
        every, checkpointer = self.config.checkpoint_every, self.state.checkpointer
        is_idle = checkpointer is not None and not checkpointer.is_saving
        # Process 0 commits a save, so it knows first when the next one may begin.
        if every == CONTINUOUS and is_idle and jax.process_index() == 0:
            self.processes.request_save()
        request = self.processes.after(self.state.step)
        if request is not None and request.kind != "save":
            self._end(request)
            return True
        if request is not None and every != CONTINUOUS:
            self.recorder.drain()
            self.log.info(events.requested_save(self.state.step))
        if request is not None or self.is_due(self.config.saved_every):
            self._save()
        return self.end_if_reached()

    def end_if_reached(self) -> bool:
        """Save and return True if `run(until=)` ends the run here."""
        if self.state.step < self._last_step or self._until >= self._total_steps:
            return False
        self._save()
        self._stop_reason = f"step {self._until} is reached"
        return True

    @property
    def _total_steps(self) -> int:
        return self.state.sampler.total_steps

    @property
    def _is_complete(self) -> bool:
        """Whether nothing of the run is left to do."""
        state = self.state
        return state.step == self._total_steps and not state.is_evaluation_due

    @property
    def _last_step(self) -> int:
        """The step after which this call ends, at least the step at which it starts."""
        return max(self.state.step, min(self._until, self._total_steps))

    def is_due(self, every: int | None) -> bool:
        """Return whether the current step is the last, or a multiple of `every`."""
        state = self.state
        return state.step == state.sampler.total_steps or (
            every is not None and state.step % every == 0
        )

    def finish(self) -> RunSummary:
        """Put the newest arrays into the user's objects, and check the last update."""
        state, recorder = self.state, self.recorder
        recorder.drain()
        state.show()
        state.check_finite(recorder)
        return RunSummary(
            start_step=self._start or 0,
            step=state.step,
            total_steps=state.sampler.total_steps,
            loss=recorder.last_loss,
            eval_loss=self.evaluator.eval_loss,
            evaluation=self.evaluator.result,
            tokens=recorder.new_tokens,
            seconds=time.perf_counter() - self._began_s,
            waited_s=recorder.waited_s,
            save_path=state.save_path,
            stop_reason=self._stop_reason,
        )

    def compile_ahead(self, compiler: Executor) -> None:
        """Compile the programs for the remaining steps in the background, in order."""
        state = self.state
        phases = zip(state.sampler.phases, self.shapes, strict=True)
        needed = [batch for phase, batch in phases if phase.stop > state.step]

        def report(shape: CompiledShape) -> None:
            # After a second signal the compiler may outlive the log.
            with suppress(RuntimeError):
                self.log.info(str(shape))

        # The first save may be due before the programs of later phases are compiled.
        self.updates.begin(compiler, needed[:1], report)
        if needed and state.checkpointer is not None:
            state.finite.compile_ahead(compiler)
        self.updates.begin(compiler, needed, report)
        held_out = self.evaluator.held_out
        if held_out is not None and (needed or state.is_evaluation_due):
            held_out.programs.begin(compiler, held_out.shapes)

    def _warm_up(self) -> None:
        """Do the first save's one-time work while the first step is compiled."""
        state = self.state
        if state.checkpointer is not None and state.step < self._last_step:
            with self.processes.paused("warm up"):
                state.checkpointer.warm_up()

    def _save(self) -> None:
        with self.processes.paused("save"):
            self.state.save(self.recorder, self._logs)
        checkpointer = self.state.checkpointer
        record = None if checkpointer is None else checkpointer.last_save
        if checkpointer is None or record is None:
            return
        if record.is_snapshot != self._was_snapshot:
            self._was_snapshot = record.is_snapshot
            # A CPU holds no second copy, and nothing is to be said of that.
            if record.is_snapshot or checkpointer.has_room is not None:
                self.log.info(events.saved(record))

    def _end(self, request: Request | None) -> None:
        """Save the state; raise `Preempted` unless `Trainer.stop` ends the run."""
        self._save()
        step, is_saved = self.state.step, self.state.checkpointer is not None
        if request is not None and request.kind == "end":
            self._stop_reason = request.reason
            return
        if request is not None and request.kind == "fail":
            text = events.failed_log(step, request.reason, is_saved)
            raise LogWriteError(text) from self.log.failure
        name = "a signal" if request is None else request.reason
        raise Preempted(step, name, saved=is_saved, complete=self._is_complete)

    @contextmanager
    def _excluded(self, what: str, field: str) -> Generator[None]:
        """Count the time of a block under `field`, and not as the time of a step."""
        with self.processes.paused(what), self.recorder.excluded(field):
            yield

    def _restore(self) -> None:
        """Restore the state, and log the start."""
        state, log, sampler = self.state, self.log, self.state.sampler
        start = state.restore()
        self._start = start
        origin = None if state.origin is None else state.origin.record
        seconds = time.perf_counter() - self._began_s
        coming = events.next_epochs(sampler, start)
        opening = events.opening(
            sampler, start, coming, state.first_step, origin, seconds
        )
        for line in opening:
            log.info(line)
        row = {
            **start_fields(start, sampler, seconds),
            "made_by": state.made_by,
            "settings": self.config.settings(),
            **environment(self.machine.kinds, self.mesh.shape),
            **self._declared(start),
        }
        for each in self._logs:
            each.start(row, state.past_log)
        self._commit_start()
        if not self.processes.handles_signals and start < sampler.total_steps:
            log.info(events.IN_THREAD)
        if state.checkpointer is None and start < sampler.total_steps:
            log.info(events.UNSAVED)
        if state.folder is not None and state.folder.mirror is not None:
            log.info(events.uploads(state.folder.path, state.folder.location))
        if state.origin is not None and start == state.first_step:
            for text in state.origin.warnings:
                # The constructor has shown this warning before the log was open.
                log.warning(text, terminal=False)
        warnings = (
            *sampler.notes_on_sources,
            *state.held_out.notes,
            sampler.unread_masks,
            events.trained_before(state.num_foreign_updates),
            events.changed_rate(state.past_rate, state.next_rate, start),
            events.changed_model(state.past_made_by, state.made_by, start),
        )
        for warning in filter(None, warnings):
            log.warning(warning)
        lines = events.planned(sampler, start, coming, self.config.log_every)
        self._planned = events.PlannedLines(log, lines)
        if start < sampler.total_steps:
            self._log_notes()
        self._planned.log(start)

    def _log_notes(self) -> None:
        """Log doubts about the run, and the costs of its shapes."""
        for problem in self.warnings:
            self.log.warning(problem)
        notes, sampler = [*self.notes], self.state.sampler
        if any(phase.seq_len > sampler.longest for phase in sampler.phases):
            notes += sampler.plan().notes_on_longest
        rate_at, step = self.state.rate_at, self.state.step
        if rate_at is not None:
            notes += events.ended_rate(rate_at, step, sampler.total_steps)
        for note in notes:
            self.log.info(note)

    def _commit_start(self) -> None:
        """Flush the row of this start; in a bucket, upload it: readers need it."""
        folder = self.state.folder
        if folder is None or jax.process_index() != 0:
            return
        self._logs[-1].position()
        if folder.mirror is not None:
            folder.mirror.commit()

    def _declared(self, start: int) -> dict[str, Any]:
        """Return the config's fields for the row of a start, and copy its file.

        The copy in the run's folder is for people, who may edit it and train with it. A
        complete run keeps the config that its steps used. Without a config, the row
        says which parts the maker of the model did not make.
        """
        given, folder = self.declaration, self.state.path
        if given is None:
            return {"own": self._own_parts()}
        if start == self.state.sampler.total_steps:
            return {}
        if folder is not None and jax.process_index() == 0:
            copy, text = folder / CONFIG, given.text.encode()
            is_kept = copy.is_file() and copy.read_bytes() == text
            if not is_kept and given.file.resolve() != copy.resolve():
                replace_file(copy, text, folder / f"{CONFIG}.tmp")
        return {"config": given.text}

    def _own_parts(self) -> list[str]:
        """Return the arguments that hold code or data of the program alone."""
        config = self.config
        made = self.state.made_by
        parts = {"optimizer": self.state.optimizer, "loss_fn": config.loss_fn}
        own = [n for n, x in parts.items() if getattr(x, "made_by", None) != made]
        names = "train_step", "eval_fn", "eval_curriculum", "data_sharding"
        return own + [n for n in names if getattr(config, n) is not None]

    def _log_ending(self, error: BaseException | None) -> None:
        """Log how the run ended, after its last checkpoint is written."""
        state, total = self.state, self.state.sampler.total_steps
        if self._start is None:
            # Nothing was restored, so there is nothing to tell but the error.
            if error is not None:
                self._log_end(error, None)
            return
        if error is None and self._start == total:
            return  # a complete run, which has trained nothing now
        saved = events.what_is_saved(state.checkpointer)
        spent = None
        if state.path is not None and jax.process_index() == 0:
            spent = self._spent(state.path)
        if spent is not None:
            self.log.info(events.spent(spent))
        self._log_end(error, spent)
        if self._stop_reason is None:
            line = events.ending(error, state.sampler, saved)
        else:
            line = events.stopped(state.step, self._stop_reason, saved)
        self.log.info(line)

    def _log_end(self, error: BaseException | None, spent: Goodput | None) -> None:
        step, is_complete = self.state.step, self._is_complete
        for log in self._logs:
            log.end(events.end_row(step, error, spent, is_complete=is_complete))

    def _spent(self, folder: Path) -> Goodput | None:
        """Return where the time of all starts went, if the log is on the disk."""
        log = self._logs[-1]  # the one in this folder
        log.position()  # flushes the rows, and raises no error of a write
        if log.failure is not None:
            return None
        spent = RunFolder(folder).goodput(until=time.time())
        return spent if spent.seconds else None

    def _settings(self) -> dict[str, object]:
        """Return the settings that must be equal in all processes, as JSON values.

        Processes with different settings would wait for each other forever.
        """
        sampler, held_out = self.state.sampler, self.evaluator.held_out
        state = sampler.state(0)
        del state["digest"]  # it differs whenever another part differs
        of_sources = {
            f"{what} of source {name!r}": value
            for name, source in zip(
                sampler.source_names, state.pop("sources"), strict=True
            )
            for what, value in source.items()
        }
        of_phases: dict[str, object] = {}
        for number, phase in enumerate(sampler.phases):
            of_phases |= {
                f"phase {number}": f"{phase.steps} steps of {phase.batch_size} x "
                f"{phase.seq_len} from step {phase.start}",
                f"weights of phase {number}": dict(phase.weights),
                f"skips of phase {number}": [[s.at, s.steps] for s in phase.skips],
            }
        # The corpora come first: they may be the cause of other differences.
        return {
            "sources": sampler.source_names,
            **of_sources,
            "what is withdrawn": [
                [each.step, each.source, each.digest] for each in sampler.withdrawals
            ],
            "number of phases": len(sampler.phases),
            **of_phases,
            **state,
            **self.config.pacing(),
            "until": self._until,
            "evaluation": [
                self.config.eval_fn is not None,
                held_out and {n: s.state(0) for n, s in held_out.samplers.items()},
            ],
        }


def environment(devices: Mapping[str, int], mesh: Mapping[str, int]) -> dict[str, Any]:
    """Return the machine and software of this start, which may change the bits.

    `devices` counts the devices of the run by kind, `mesh` the devices along each axis.
    """
    return {
        "command": sys.argv,
        "versions": {
            **{name: metadata.version(name) for name in _VERSIONS},
            # A thousand hosts would ask one disk; process 0 writes the row.
            **(_program() if jax.process_index() == 0 else {}),
        },
        "devices": dict(devices),
        "processes": jax.process_count(),
        "mesh": dict(mesh),
        "flags": {name: read() for name, read in _FLAGS.items()},
    }


@cache
def _program() -> dict[str, str]:
    """Return the commit of the current folder, if it is in a repository of git.

    Tracked files that differ from the commit add `-dirty`.
    """
    try:
        found = subprocess.run(  # noqa: S603 - a fixed command
            _COMMIT, check=True, capture_output=True, text=True, timeout=_GIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"program": found.stdout.strip()}
