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


class NonFiniteLossError(FloatingPointError):
    """The loss of an update was NaN or infinite; nothing was saved after it.

    Attributes:
        step: Updates done when it happened, the bad one included.
        loss: The value.
        rows: Where every row of the batch came from.
    """

    def __init__(self, step: int, loss: float, rows: tuple[BatchRow, ...]) -> None:
        self.step = step
        self.loss = loss
        self.rows = rows
        shown = "; ".join(map(str, rows[:4]))
        more = f"; and {len(rows) - 4} more rows" if len(rows) > 4 else ""
        super().__init__(
            f"the loss of step {step} is {loss}; its batch was {shown}{more}; "
            "no checkpoint was written after the last finite loss, so look at that "
            "batch or lower the learning rate, then start again"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by the arguments, not by the message."""
        return type(self), (self.step, self.loss, self.rows)


class Preempted(SystemExit):
    """A signal asked the run to stop; the step was finished and saved.

    Uncaught, it ends the program with exit code 75, so that a scheduler can tell a
    preempted run from a failed one and queue it again.

    Attributes:
        step: Updates done and saved.
        signal_name: The signal, such as `"SIGTERM"`.
    """

    def __init__(self, step: int, signal_name: str) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.step = step
        self.signal_name = signal_name

    def __str__(self) -> str:
        """Return what happened and how to go on."""
        return (
            f"{self.signal_name} ended the run after step {self.step}; "
            "start it again to go on from there"
        )
