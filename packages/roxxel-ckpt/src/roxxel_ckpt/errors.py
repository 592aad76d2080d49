"""What can go wrong with a checkpoint; each error is a builtin one too."""

from __future__ import annotations


class CheckpointError(Exception):
    """Base of every error that this package raises about a checkpoint."""


class CheckpointDamagedError(CheckpointError, ValueError):
    """A checkpoint's files are not the ones that were written."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint does not fit the live model and optimizer."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """The step asked for has no checkpoint in the folder."""


class CheckpointWriteError(CheckpointError, OSError):
    """A save did not reach the disk; earlier checkpoints are untouched."""


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """A background write took longer than the checkpointer's `timeout`."""
