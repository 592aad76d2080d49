"""Checkpoints, under the name that reads best: `from roxxel.checkpoint import ...`.

The same names as those of `roxxel_ckpt`.
"""

from __future__ import annotations

from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointStateLostError,
    CheckpointTimeoutError,
    CheckpointWriteError,
    LeafSpec,
    RestoreReport,
    SaveRecord,
    default_best_metric,
    read_description,
)

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointStateLostError",
    "CheckpointTimeoutError",
    "CheckpointWriteError",
    "Checkpointer",
    "LeafSpec",
    "RestoreReport",
    "SaveRecord",
    "default_best_metric",
    "read_description",
]
