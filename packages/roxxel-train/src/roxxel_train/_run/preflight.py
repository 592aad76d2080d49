"""What a run needs from the machine, found before its first step: memory, disk, time.

The time is that of a few steps of each batch shape, which are undone. A batch that does
not fit a device's memory may fit in more parts. The proposals are estimates: they
assume that memory besides model and optimizer falls with the rows and columns that a
device holds at a time.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from roxxel_ckpt.coordination import Channel
from roxxel_ckpt.devices import bytes_by_device
from roxxel_loader import device_stream
from roxxel_loader.sharding.presets import CONTEXT_AXIS
from roxxel_store.screen import short_duration, short_size

from roxxel_train._step.compiled import compiling_thread, is_debugging
from roxxel_train._step.fed import FedRows
from roxxel_train._step.placement import instead_of_set_mesh, most_parts
from roxxel_train._together.watcher import needs_all_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from roxxel_curriculum import ResolvedPhase

    from roxxel_train._run.session import Session
    from roxxel_train._run.state import RunState
    from roxxel_train._step.compiled import CompiledShape
    from roxxel_train._step.placement import BatchPlacement
    from roxxel_train.config import TrainConfig

REMEDY = (
    "raise grad_accum_steps, shard the model, use smaller batches, or split long rows "
    f"over a mesh axis {CONTEXT_AXIS!r}"
)
"""What to do if it is only known that a batch does not fit."""

_MOST_TRIED = 1 << 12

_NUM_TIMED = 3
"""Number of timed steps, after one that warms up: few, because a step may be long."""

_TIMED = Channel("train/preflight")

_COSTS = {
    True: "; a save copies it on the devices, and training goes on",
    False: "; a save waits for its copy to the host, as no device has room for it",
    None: "",
}


@dataclass(frozen=True)
class Preflight:
    """The time, memory and disk space of a run, and problems that would end the run.

    Attributes:
        compiled: Compile time, memory and time of a step for each distinct batch shape.
        device_limit_bytes: Memory of the smallest local device; None where JAX does not
            report it, as on a CPU.
        checkpoint_bytes: Size of the arrays of one checkpoint.
        is_saved_behind: Whether every device has room, besides a step, for a copy of
            its arrays, so that training goes on during a save. False if a save waits
            for the copy to the host. None if the memory of the device or of a step is
            unknown.
        disk_needed_bytes: Disk space that further checkpoints of the run need; None if
            the trainer does not write checkpoints to a disk under `save_path`.
        disk_free_bytes: Free space on the disk of the folder; None if
            `disk_needed_bytes` is None.
        problems: One sentence for each problem.
        notes: One sentence for each batch shape whose rows are replicated over devices
            instead of divided, for each phase that leaves devices idle, and for each
            doubt about the sources and the held-out sets.
        steps: Steps that the run has yet to train.
        training_s: Estimated seconds of these steps on this machine, without
            evaluations, saves and waits for data; None if no step was timed.
    """

    compiled: tuple[CompiledShape, ...]
    device_limit_bytes: int | None
    checkpoint_bytes: int
    is_saved_behind: bool | None
    disk_needed_bytes: int | None
    disk_free_bytes: int | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    steps: int = 0
    training_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether `problems` is empty."""
        return not self.problems

    def __str__(self) -> str:
        """Return one line for each finding."""
        lines = [str(shape) for shape in self.compiled]
        if self.training_s is not None:
            lines.append(
                f"about {short_duration(self.training_s)} for {self.steps:,} steps on "
                "this machine, without evaluations, saves and waits for data"
            )
        if self.device_limit_bytes is not None:
            lines.append(f"a device has {short_size(self.device_limit_bytes)}")
        line = f"a checkpoint holds {short_size(self.checkpoint_bytes)}"
        lines.append(line + _COSTS[self.is_saved_behind])
        if self.disk_needed_bytes is not None and self.disk_free_bytes is not None:
            lines.append(
                f"checkpoints need {short_size(self.disk_needed_bytes)} more, "
                f"{short_size(self.disk_free_bytes)} are free"
            )
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append("ready" if self.ok else "not ready")
        return "\n".join(lines)


def preflight(session: Session) -> Preflight:
    """Compile for every phase; return time, memory, disk space and problems.

    If there is a problem, in any process, no step is timed.
    """
    config, state, updates = session.config, session.state, session.updates
    with compiling_thread() as compiler:
        updates.begin(compiler, session.shapes)
    folder = state.folder if config.checkpointer is None else None
    checkpoints = None if folder is None else folder.checkpoints
    fitting = Fitting(
        session.placement,
        state.sampler.phases,
        config.grad_accum_steps,
        updates.found.whole,
    )
    found = find_problems(
        tuple(replace(one, held=fitting.held(one.shape)) for one in updates.shapes()),
        fitting.remedy,
        state.arrays,
        checkpoints if isinstance(checkpoints, Path) else None,
        _most_checkpoints(config, state.sampler.total_steps),
        [*state.held_out.problems(), *session.log.sink_problems()],
        [
            *state.sampler.notes_on_sources,
            *state.held_out.notes,
            *session.warnings,
            *session.notes,
        ],
    )
    return _timed(found, session)


def find_problems(
    compiled: tuple[CompiledShape, ...],
    remedy: Callable[[CompiledShape, int], str],
    arrays: Any,
    folder: Path | None,
    num_checkpoints: int,
    others: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Preflight:
    """Compare what a run needs with what the machine has.

    `remedy` says what to do about batches that need more than the memory of a device.
    `folder` is the folder of the checkpoints on a disk; None if there is none. At
    most `num_checkpoints` checkpoints are on the disk at one time. `others` has a
    sentence for each problem that the caller has found. The result gets `notes`
    unchanged.
    """
    memory = [device.memory_stats() or {} for device in jax.local_devices()]
    limits = [stats["bytes_limit"] for stats in memory if stats.get("bytes_limit")]
    limit = min(limits, default=None)
    problems = [
        f"batches of {' x '.join(map(str, shape.shape))} need about "
        f"{short_size(shape.device_bytes or 0)} on a device that has "
        f"{short_size(limit)}; {remedy(shape, limit)}"
        for shape in compiled
        if limit is not None and (shape.device_bytes or 0) > limit
    ]
    problems += others
    checkpoint_bytes = sum(x.nbytes for x in jax.tree.leaves(arrays))
    steps = [shape.device_bytes for shape in compiled]
    is_saved_behind = None
    if limit is not None and steps and None not in steps:
        own = max(bytes_by_device(jax.tree.leaves(arrays)).values(), default=0)
        is_saved_behind = max(each or 0 for each in steps) + own <= limit
    needed = free = None
    if folder is not None:
        existing = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
        needed = max(num_checkpoints * checkpoint_bytes - existing, 0)
        above = (folder, *folder.absolute().parents)
        free = shutil.disk_usage(next(path for path in above if path.exists())).free
        if needed > free:
            problems.append(
                f"{folder}: {num_checkpoints} checkpoints need {short_size(needed)} "
                f"more but {short_size(free)} are free; make room or lower max_to_keep"
            )
    return Preflight(
        compiled,
        limit,
        checkpoint_bytes,
        is_saved_behind,
        needed,
        free,
        tuple(problems),
        tuple(notes),
    )


@dataclass(frozen=True)
class Fitting:
    """How the batches of a run may be divided further.

    Attributes:
        placement: How the batches are divided over the mesh.
        phases: The phases of the run; all their batches divide into as many parts.
        parts: Parts of an accumulated batch.
        whole: Shapes of batches whose columns the model does not split.
    """

    placement: BatchPlacement
    phases: Sequence[ResolvedPhase]
    parts: int
    whole: Collection[tuple[int, ...]]

    def held(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the rows and columns that a device works on at a time."""
        return self.placement.held(shape, self.parts, is_whole=shape in self.whole)

    def remedy(self, shape: CompiledShape, limit: int) -> str:
        """Return what to do about a program that needs more than `limit` bytes."""
        fixed = (shape.device_bytes or 0) - shape.activation_bytes
        if fixed >= limit:
            return (
                f"model, optimizer and batch alone take {short_size(fixed)}, so shard "
                "the model over more devices"
            )
        held = math.prod(self.held(shape.shape))
        for change, less in self._in_parts(shape.shape):
            share = math.prod(less) / held
            needed = fixed + math.ceil(shape.activation_bytes * share)
            if needed <= limit:
                return f"with {change}, a device would need about {short_size(needed)}"
        return REMEDY

    def _in_parts(
        self, shape: tuple[int, ...]
    ) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each larger number of parts that leaves no device idle."""
        most, is_whole = most_parts(self.phases, self.placement), shape in self.whole
        for parts in range(self.parts + 1, min(most, _MOST_TRIED) + 1):
            if most % parts == 0:
                held = self.placement.held(shape, parts, is_whole=is_whole)
                yield f"grad_accum_steps={parts}", held


def _most_checkpoints(config: TrainConfig, total_steps: int) -> int:
    """Return how many checkpoints of a run are on the disk at one time, at most."""
    every = config.checkpoint_every
    # Continuous saves may be as many as the steps.
    interval = every if isinstance(every, int) else 1
    num_saves = -(-total_steps // interval)
    if config.max_to_keep is None:
        return num_saves
    # The newest checkpoints, the best one, and one that is being written.
    kept = config.max_to_keep + 2
    if isinstance(config.keep_every, int):
        kept += total_steps // math.lcm(config.keep_every, interval)
    return min(num_saves, kept)


@needs_all_processes
def _timed(found: Preflight, session: Session) -> Preflight:
    """Time a few steps, undo them, and add their times.

    If a process has found a problem, no process times a step.
    """

    def agree(what: str, *, ready: bool) -> bool:
        return _TIMED.agree(what, lambda: ready, all, session.config.timeout)

    if not agree("preflight", ready=found.ok and not is_debugging()):
        return found
    with instead_of_set_mesh(session.mesh):
        found = _with_times(found, session)
    # A process that leaves early would count as one that failed.
    agree("end of preflight", ready=True)
    return found


def _with_times(found: Preflight, session: Session) -> Preflight:
    """Train a few steps of each batch shape, undo them, and add their times.

    Every shape trains on the next batch of its phase, so this also tests reading these
    batches.
    """
    state = session.state
    rows = FedRows(state.sampler, session.config.grad_accum_steps)
    done = max(state.step, state.found_step)
    seconds: dict[tuple[int, ...], float] = {}
    steps, training_s = 0, 0.0
    with state.unchanged():
        for phase, shape in zip(state.sampler.phases, session.shapes, strict=True):
            first, size = max(phase.start, done), (phase.batch_size, phase.seq_len)
            if first >= phase.stop:
                continue
            if size not in seconds:
                stream = device_stream(rows, first, first + 1, session.placement)
                with stream as batches:
                    batch = next(batches)
                try:
                    update = session.updates.program(shape)
                    seconds[size] = _time_of(update, state, batch)
                except jax.errors.JaxRuntimeError as error:
                    is_alone = jax.process_count() == 1
                    if not is_alone or "RESOURCE_EXHAUSTED" not in str(error):
                        raise
                    what = " x ".join(map(str, size))
                    problem = f"a step of {what} runs out of memory"
                    return replace(found, problems=(f"{problem}; {REMEDY}",))
            steps += phase.stop - first
            training_s += (phase.stop - first) * seconds[size]
    compiled = tuple(
        replace(shape, step_s=seconds.get(shape.shape)) for shape in found.compiled
    )
    return replace(
        found, compiled=compiled, steps=steps, training_s=training_s if steps else None
    )


def _time_of(update: Any, state: RunState, batch: Any) -> float:
    """Return the mean seconds of an update in a sequence of updates."""
    state.arrays, *_ = update(state.arrays, batch)
    jax.block_until_ready(state.arrays)
    began_s = time.perf_counter()
    for _ in range(_NUM_TIMED):
        state.arrays, *_ = update(state.arrays, batch)
    jax.block_until_ready(state.arrays)
    return (time.perf_counter() - began_s) / _NUM_TIMED
