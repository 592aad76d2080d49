"""What can go wrong with a checkpoint; each error is a builtin one too."""

from __future__ import annotations

import re

# TensorStore wraps what the system said, such as "No space left on device", in a page.
_OS_REASON = re.compile(r": ([^:\[\n]{3,100}) \[os_error_code=")


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


class OtherProcessError(Exception):
    """Another process of this run failed; the text says which one, and why."""


def brief(error: BaseException) -> str:
    """Return the first line of an error, cut to what fits into a sentence."""
    reason = _OS_REASON.search(str(error))
    if reason:
        return reason[1]
    lines = str(error).strip().splitlines()
    if not lines:
        return repr(error)
    said = lines[0].strip()
    text = (
        said
        if isinstance(error, OtherProcessError)
        else f"{type(error).__name__}: {said}"
    )
    limit = 200
    return text if len(text) <= limit else text[: limit - 3] + "..."
