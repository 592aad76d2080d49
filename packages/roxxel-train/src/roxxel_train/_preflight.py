"""What can be known of a run before its first step."""

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
    """What a run will take, and what stands in its way.

    Attributes:
        compiled: Each distinct shape of batch: time to compile and memory.
        device_limit_bytes: Memory of the smallest local device; None where it is
            unknown, as on a CPU.
        checkpoint_bytes: Arrays of one checkpoint.
        disk_needed_bytes: What all checkpoints together still need; None without a
            folder of the trainer's own.
        disk_free_bytes: Room where the run's folder lies; None likewise.
        problems: One sentence for each thing that would end the run.
    """

    compiled: tuple[CompiledShape, ...]
    device_limit_bytes: int | None
    checkpoint_bytes: int
    disk_needed_bytes: int | None
    disk_free_bytes: int | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.problems

    def __str__(self) -> str:
        """Return a line for each finding."""
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


def look_ahead(
    compiled: tuple[CompiledShape, ...],
    state: Any,
    folder: Path | None,
    num_checkpoints: int,
) -> Preflight:
    """Compare what a run takes with what is there.

    Args:
        compiled: What compiling found out.
        state: The arrays that a checkpoint holds.
        folder: Of the checkpoints; None if the trainer does not choose it.
        num_checkpoints: Checkpoints that lie there at once, at most.
    """
    limit = min(filter(None, map(_limit, jax.local_devices())), default=None)
    problems = [
        f"batches of {' x '.join(map(str, shape.shape))} need about "
        f"{in_bytes(shape.device_bytes or 0)} on a device that has {in_bytes(limit)}; "
        "raise grad_accum_steps, shard the model or take smaller batches"
        for shape in compiled
        if limit is not None and (shape.device_bytes or 0) > limit
    ]
    checkpoint_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    needed = free = None
    if folder is not None:
        there = sum(x.stat().st_size for x in folder.rglob("*") if x.is_file())
        needed = max(num_checkpoints * checkpoint_bytes - there, 0)
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
    """Return the path, or the nearest folder above that exists."""
    return next(
        folder for folder in (path, *path.absolute().parents) if folder.exists()
    )
