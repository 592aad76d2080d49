"""Errors of this package; most also inherit a builtin error, such as OSError."""

from __future__ import annotations

import re

from roxxel_store.errors import BucketError

# Finds the operating system's reason, such as "No space left on device", in the long
# messages of TensorStore. The code is one of several notes in brackets, in any order.
_OS_REASON = re.compile(r": ([^:\[\n]{3,100}) \[.*?os_error_code=", re.DOTALL)


class CheckpointError(Exception):
    """Base of every error that this package raises about a checkpoint.

    Example:
        >>> issubclass(CheckpointNotFoundError, (CheckpointError, FileNotFoundError))
        True
    """


class CheckpointBucketError(CheckpointError, BucketError):
    """A bucket refused a request, failed, or did not answer in time."""


class CheckpointDamagedError(CheckpointError, ValueError):
    """A file of a checkpoint differs from the file that was written."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint does not fit the live model and optimizer.

    Attributes:
        reason: What does not fit, and where.
        remedy: What to do. A caller that knows a better one replaces it.

    Example:
        >>> error = CheckpointMismatchError("run/checkpoints/5: has no leaf", "leave")
        >>> print(error)
        run/checkpoints/5: has no leaf; leave
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)  # both are needed to unpickle it
        self.reason = reason
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """The folder has no checkpoint of the requested step."""


class CheckpointStateLostError(CheckpointError, RuntimeError):
    """`restore(release=True)` deleted the live arrays and then failed to read."""


class CheckpointTimeoutError(CheckpointError, TimeoutError):
    """A background write or another process took longer than `timeout` seconds."""


class CheckpointUnreadableError(CheckpointError, OSError):
    """A checkpoint cannot be read here and now, but may be sound.

    The disk, a permission or the memory of this machine is the reason, or a newer
    release wrote the checkpoint. No checkpoint is skipped, moved or deleted.
    """

    @classmethod
    def because(
        cls, location: object, error: BaseException
    ) -> CheckpointUnreadableError:
        """Return the error for a step or file that another error makes unreadable.

        Args:
            location: The step or the file.
            error: Error of the operating system, of the memory or of a library.
        """
        reason = brief(error)
        if isinstance(error, OSError) and error.strerror:
            name = "" if error.filename is None else f": {error.filename}"
            reason = f"{error.strerror}{name}"
        return cls(
            f"{location}: cannot be read ({reason}), but may be sound, so nothing was "
            "changed; remove the cause and start again, or move this step out of its "
            "folder to continue from an earlier one"
        )


class CheckpointWriteError(CheckpointError, OSError):
    """A save failed, or the local disk has no room for the copies of a restore.

    Checkpoints are unchanged.
    """


class OtherProcessError(CheckpointError):
    """Another process of the program failed; the text names it and the reason."""


def reason_in_text(error: BaseException) -> str | None:
    """Return the operating system's reason that an error of TensorStore names.

    Orbax wraps this error in one that has no reason.
    """
    is_sentence = isinstance(error, CheckpointError)
    for each in (error,) if is_sentence else (error, error.__cause__):
        found = _OS_REASON.search(str(each))
        if found:
            return found[1]
    return None


def brief(error: BaseException) -> str:
    """Return the reason of an error, short enough for part of a sentence."""
    reason = reason_in_text(error)
    if reason is not None:
        return reason
    lines = str(error).strip().splitlines()
    if not lines:
        return repr(error)
    line = lines[0].strip()
    is_sentence = isinstance(error, CheckpointError)
    text = line if is_sentence else f"{type(error).__name__}: {line}"
    limit = 600 if is_sentence else 200
    return text if len(text) <= limit else text[: limit - 3] + "..."
