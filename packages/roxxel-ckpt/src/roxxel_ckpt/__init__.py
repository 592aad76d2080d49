"""Asynchronous, verified Orbax checkpoints of Flax NNX models and optimizers.

`Checkpointer` saves the live state in the background, keeps the newest and the best,
checks digests before it uses anything, and restores bit for bit into the shardings of
the live model.

    with Checkpointer("checkpoints", model, optimizer) as checkpointer:
        start = checkpointer.restore()
        for step in range(start, 1000):
            ...
            checkpointer.save(step + 1, {"loss": loss})
"""

from roxxel_ckpt._checkpointer import Checkpointer, SaveRecord
from roxxel_ckpt._compare import RestoreReport
from roxxel_ckpt._leaves import LeafSpec
from roxxel_ckpt.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointTimeoutError,
    CheckpointWriteError,
)

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointTimeoutError",
    "CheckpointWriteError",
    "Checkpointer",
    "LeafSpec",
    "RestoreReport",
    "SaveRecord",
]
