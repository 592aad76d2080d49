"""What a run needs, found out before its first step."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from roxxel_train._units import in_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_train._compiled import CompiledShape


@dataclass(frozen=True)
class Preflight:
    """What a run needs, and which problems would end it.

    Attributes:
        compiled: Time to compile and memory, for each distinct shape of batch.
        device_limit_bytes: Memory of the smallest local device; None where JAX does not
            know it, as on a CPU.
        checkpoint_bytes: Size of the arrays of one checkpoint.
        disk_needed_bytes: Free space that the checkpoints of the run still need; None
            when the trainer does not write them to its own folder.
        disk_free_bytes: Free space of that disk; None likewise.
        problems: One sentence for each problem.
    """

    compiled: tuple[CompiledShape, ...]
    device_limit_bytes: int | None
    checkpoint_bytes: int
    disk_needed_bytes: int | None
    disk_free_bytes: int | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def __str__(self) -> str:
        """Return one line for each finding."""
        lines = [str(shape) for shape in self.compiled]
        if self.device_limit_bytes is not None:
            lines.append(f"a device has {in_bytes(self.device_limit_bytes)}")
        lines.append(f"a checkpoint holds {in_bytes(self.checkpoint_bytes)}")
        if self.disk_needed_bytes is not None and self.disk_free_bytes is not None:
            lines.append(
                f"checkpoints need {in_bytes(self.disk_needed_bytes)} more, "
                f"{in_bytes(self.disk_free_bytes)} are free"
            )
        lines += [f"problem: {problem}" for problem in self.problems]
        lines.append("ready" if self.ok else "not ready")
        return "\n".join(lines)


def find_problems(
    compiled: tuple[CompiledShape, ...],
    arrays: Any,
    folder: Path | None,
    num_checkpoints: int,
) -> Preflight:
    """Compare what a run needs with what the machine has.

    Args:
        compiled: The compiled programs.
        arrays: The arrays that a checkpoint holds.
        folder: Folder of the checkpoints; None if the trainer does not choose it.
        num_checkpoints: Largest number of checkpoints on the disk at one time.
    """
    limit = min(filter(None, map(_limit, jax.local_devices())), default=None)
    problems = [
        f"batches of {' x '.join(map(str, shape.shape))} need about "
        f"{in_bytes(shape.device_bytes or 0)} on a device that has {in_bytes(limit)}; "
        "raise grad_accum_steps, shard the model or use smaller batches"
        for shape in compiled
        if limit is not None and (shape.device_bytes or 0) > limit
    ]
    checkpoint_bytes = sum(x.nbytes for x in jax.tree.leaves(arrays))
    needed = free = None
    if folder is not None:
        existing = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
        needed = max(num_checkpoints * checkpoint_bytes - existing, 0)
        free = shutil.disk_usage(_nearest(folder)).free
        if needed > free:
            problems.append(
                f"{folder}: {num_checkpoints} checkpoints need {in_bytes(needed)} more "
                f"but {in_bytes(free)} are free; make room or lower max_to_keep"
            )
    return Preflight(compiled, limit, checkpoint_bytes, needed, free, tuple(problems))


def _limit(device: Any) -> int | None:
    return (device.memory_stats() or {}).get("bytes_limit")


def _nearest(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    return next(
        folder for folder in (path, *path.absolute().parents) if folder.exists()
    )
