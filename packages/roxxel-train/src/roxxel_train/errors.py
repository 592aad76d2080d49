"""Errors that end a run early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREEMPTED_EXIT_CODE = 75
"""Exit code of a run that a signal stopped (`EX_TEMPFAIL` of `sysexits.h`)."""


class ClusterError(RuntimeError):
    """The processes of this program cannot be connected."""


class RunMismatchError(ValueError):
    """The folder holds another run, which this run must not overwrite."""


class RunFolderError(ValueError):
    """A folder does not hold the requested run, or the requested part of it."""


class SettingsDifferError(ValueError):
    """A setting differs between processes; every process raises this error."""


@dataclass(frozen=True)
class BatchRow:
    """The source, tokens and documents of one row of a batch.

    Attributes:
        row: Row of the batch, from 0.
        source: Name of the source.
        start: Index of the first token in the source.
        stop: One past the index of the last token.
        documents: Indices of the documents that the row overlaps, in order.

    Example:
        >>> print(BatchRow(row=3, source="self", start=64, stop=96, documents=(5, 6)))
        row 3: self tokens [64, 96), documents 5, 6
    """

    row: int
    source: str
    start: int
    stop: int
    documents: tuple[int, ...]

    def __str__(self) -> str:
        """Return one line for a log."""
        text = f"row {self.row}: {self.source} tokens [{self.start}, {self.stop})"
        if not self.documents:
            return text
        numbers = ", ".join(map(str, self.documents[:4]))
        more = ", ..." if len(self.documents) > 4 else ""
        return f"{text}, document{'s' * (len(self.documents) > 1)} {numbers}{more}"


class LogWriteError(OSError):
    """The log of a run cannot be written, so the run stopped.

    The run has saved its state first, with the metrics rows that are not in the log.
    All processes raise the error at the same step.
    """


class NonFiniteError(FloatingPointError, ValueError):
    """A loss, or a parameter after an update, is NaN or infinite.

    The trainer saves nothing after this update, so the newest checkpoint is sound. All
    processes raise the error at the same step.

    Attributes:
        step: Number of the update, from 1.
        what: The value that is not finite, in words, such as `the loss is nan`.
        rows: Source, tokens and documents of every row of the batch.
        cause: Why the batch gives this value, and what to do; None if unknown.
    """

    def __init__(
        self,
        step: int,
        what: str,
        rows: tuple[BatchRow, ...],
        cause: str | None = None,
    ) -> None:
        self.step = step
        self.what = what
        self.rows = rows
        self.cause = cause
        shown = "; ".join(map(str, rows[:4]))
        more = f"; and {len(rows) - 4} more rows" if len(rows) > 4 else ""
        advice = cause or (
            "nothing was saved after this step, so check the batch or lower the "
            "learning rate, then start again"
        )
        super().__init__(f"step {step}: {what}; its batch was {shown}{more}; {advice}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments instead of the message."""
        return type(self), (self.step, self.what, self.rows, self.cause)


class SilentCorruptionError(RuntimeError):
    """An update that was made twice, for `verify_every`, gave different bits.

    The trainer saves nothing after this update. All processes raise the error at the
    same step.

    Attributes:
        step: Number of the update, from 1.
        leaves: For each array that differs, by its name such as `model/embed/kernel`:
            how many values differ on the device with the most, and the array's size.
        devices: The devices that hold these arrays.
    """

    def __init__(
        self, step: int, leaves: Mapping[str, tuple[int, int]], devices: tuple[str, ...]
    ) -> None:
        self.step = step
        self.leaves = leaves
        self.devices = devices
        (first, (count, size)), *others = leaves.items()
        more = f" and {len(others)} more" if others else ""
        where = ", ".join(devices[:4]) + ", ..." * (len(devices) > 4)
        super().__init__(
            f"step {step}: the same update made twice gave other bits in {first} "
            f"({count} of {size} values){more}, on {where}; a device or its memory is "
            "faulty, and nothing was saved after the newest checkpoint, so start again "
            "on other devices"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments instead of the message."""
        return type(self), (self.step, dict(self.leaves), self.devices)


class Preempted(SystemExit):
    """A signal stopped the run after a finished step.

    A run that writes checkpoints has saved this step. If nothing catches the exception,
    the program ends with exit code 75. From this code a scheduler can tell a preempted
    run, which it may queue again, from a failed run.

    A signal in the last step raises this exception too, because the program may go on
    with another run. `roxxel train` and `roxxel quickstart`, which have no other, then
    exit with 0.

    Attributes:
        step: Updates done.
        signal_name: The signal, such as `"SIGTERM"`.
        saved: Whether a checkpoint holds these updates.
        complete: Whether nothing of the run is left to do.
    """

    def __init__(
        self, step: int, signal_name: str, *, saved: bool = True, complete: bool = False
    ) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.step = step
        self.signal_name = signal_name
        self.saved = saved
        self.complete = complete

    def __str__(self) -> str:
        """Return what happened and how to continue."""
        if self.complete:
            return f"complete: {self.signal_name} came in step {self.step}, the last"
        ended = f"{self.signal_name} ended the run after step {self.step}; "
        if self.saved:
            return ended + "start the run again to continue"
        return ended + "without a save_path, nothing was saved"
