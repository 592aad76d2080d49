"""What can end a run early, each catchable alone."""

from __future__ import annotations

from dataclasses import dataclass

PREEMPTED_EXIT_CODE = 75
"""Exit code of a run that a signal ended after saving (`EX_TEMPFAIL`: try again)."""


class RunMismatchError(ValueError):
    """The folder of a run holds something that this run may not write over."""


@dataclass(frozen=True)
class BatchRow:
    """Where one row of a batch came from.

    Attributes:
        row: Row of the batch, from 0.
        source: Name of the source.
        start: First token in the source.
        stop: One past the last token.
        documents: Documents that the row touches, in order.
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
    """A loss, or what an update left in the model, was NaN or infinite.

    Nothing was saved after it, so the newest checkpoint is a good one.

    Attributes:
        step: Updates done when it was seen, the bad one included.
        what: What was not finite.
        rows: Where every row of the batch of that update came from.
    """

    def __init__(self, step: int, what: str, rows: tuple[BatchRow, ...]) -> None:
        self.step = step
        self.what = what
        self.rows = rows
        shown = "; ".join(map(str, rows[:4]))
        more = f"; and {len(rows) - 4} more rows" if len(rows) > 4 else ""
        super().__init__(
            f"step {step}: {what}; its batch was {shown}{more}; no checkpoint was "
            "written since, so look at that batch or lower the learning rate, then "
            "start again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the arguments, not by the message."""
        return type(self), (self.step, self.what, self.rows)


class Preempted(SystemExit):
    """A signal asked the run to stop; the step was finished, and saved if it can be.

    Uncaught, it ends the program with exit code 75, so that a scheduler can tell a
    preempted run from a failed one and queue it again.

    Attributes:
        step: Updates done.
        signal_name: The signal, such as `"SIGTERM"`.
        saved: Whether they are in a checkpoint.
    """

    def __init__(self, step: int, signal_name: str, *, saved: bool = True) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.step = step
        self.signal_name = signal_name
        self.saved = saved

    def __str__(self) -> str:
        """Return what happened and how to go on."""
        ended = f"{self.signal_name} ended the run after step {self.step}; "
        if self.saved:
            return ended + "start it again to go on from there"
        return ended + "it has no save_path, so nothing was saved"
