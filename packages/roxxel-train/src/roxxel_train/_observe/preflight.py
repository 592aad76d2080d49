"""What a run needs from the machine, computed before the first step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from roxxel_ckpt.devices import bytes_by_device
from roxxel_store.screen import short_duration, short_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from roxxel_train._step.compiled import CompiledShape

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
