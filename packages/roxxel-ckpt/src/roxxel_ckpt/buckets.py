"""The bucket of a run's checkpoints, with this package's errors and time limit."""

from __future__ import annotations

from dataclasses import replace

from roxxel_store.client import Bucket
from roxxel_store.swap import SwapErrors

from roxxel_ckpt.errors import (
    CheckpointBucketError,
    CheckpointDamagedError,
    CheckpointTimeoutError,
    CheckpointWriteError,
)

SWAP_ERRORS = SwapErrors(
    CheckpointDamagedError, CheckpointTimeoutError, CheckpointWriteError
)
"""The errors of the manifest of checkpoints in a bucket."""

SWAP_ERRORS_ON_DISK = replace(
    SWAP_ERRORS, remedy="delete this file: the steps are the folders beside it"
)
"""The errors of the manifest of checkpoints on a disk, where folders are steps."""


def checkpoint_bucket(url: str, timeout_s: float) -> Bucket:
    """Return the objects below a URL.

    A request gets half of `timeout_s`, because a save or a restore makes several.
    """
    return Bucket(url, timeout_s / 2, error=CheckpointBucketError, option="timeout")
