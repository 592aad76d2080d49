"""Errors that end a run early."""

from __future__ import annotations

from dataclasses import dataclass

PREEMPTED_EXIT_CODE = 75
"""Exit code of a run that was saved after a signal (`EX_TEMPFAIL`: try again)."""


class RunMismatchError(ValueError):
    """The folder holds another run, which this run must not overwrite."""


@dataclass(frozen=True)
class BatchRow:
    """The source, tokens and documents of one row of a batch.

    Attributes:
        row: Row of the batch, from 0.
        source: Name of the source.
        start: First token in the source.
        stop: One past the last token.
        documents: Documents that the row overlaps, in order.
    """

    row: int
    source: str
    start: int
    stop: int
    documents: tuple[int, ...]

    def __str__(self) -> str:
        """Return one line for a log."""
        documents = ", ".join(map(str, self.documents[:4]))
        more = ", ..." if len(self.documents) > 4 else ""
        return f"row {self.row}: {self.source} tokens [{self.start}, {self.stop})" + (
            f", documents {documents}{more}" if documents else ""
        )


class NonFiniteError(FloatingPointError):
    """A loss, or a parameter after an update, is NaN or infinite.

    The trainer saves nothing after this update, so the newest checkpoint is sound. All
    processes raise the error at the same step.

    Attributes:
        step: Number of the update, from 1.
        what: What is not finite.
        rows: Source, tokens and documents of every row of the batch.
    """

    def __init__(self, step: int, what: str, rows: tuple[BatchRow, ...]) -> None:
        self.step = step
        self.what = what
        self.rows = rows
        shown = "; ".join(map(str, rows[:4]))
        more = f"; and {len(rows) - 4} more rows" if len(rows) > 4 else ""
        super().__init__(
            f"step {step}: {what}; its batch was {shown}{more}; no checkpoint was "
            "written since, so check that batch or lower the learning rate, then "
            "start again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments and not the message."""
        return type(self), (self.step, self.what, self.rows)


class Preempted(SystemExit):
    """A signal stopped the run; the step was finished, and saved if there is a folder.

    If nothing catches this exception, the program ends with exit code 75, so that a
    scheduler can queue a preempted run again and not a failed one.

    Attributes:
        step: Updates done.
        signal_name: The signal, such as `"SIGTERM"`.
        saved: Whether a checkpoint has these updates.
    """

    def __init__(self, step: int, signal_name: str, *, saved: bool = True) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.step = step
        self.signal_name = signal_name
        self.saved = saved

    def __str__(self) -> str:
        """Return what happened and how to continue."""
        ended = f"{self.signal_name} ended the run after step {self.step}; "
        if self.saved:
            return ended + "start it again to continue from there"
        return ended + "it has no save_path, so nothing was saved"
