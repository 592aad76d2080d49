"""Says in a few facts how a run stands, for `roxxel ls` and the report; without JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_train.run_folder import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_train import RunFolder
    from roxxel_train.starts import RunStart


@dataclass(frozen=True)
class RunStatus:
    """How a run stands.

    Attributes:
        run: Folder or URL of the run.
        status: As for `status_of`.
        step: Updates done, from the newest row of the log or the newest checkpoint.
        saved_step: Step of the newest sound checkpoint, from which the next start
            continues; None without one.
        total_steps: Updates of the whole run; None if the log does not record them.
        loss: Training loss of the newest row; None without one.
        eval_loss: Held-out loss of the newest evaluation, the mean over several sets;
            None without one.
        tokens_per_s: Rate of the newest row; None without one.
        time: Time of the newest row, ISO 8601; None without rows.
        goodput: Share of the wall time in steps that are part of the result, as the
            newest start has logged it at its end; None before. The report computes it
            at any time, from all rows.

    >>> from pathlib import Path
    >>> from roxxel_train import RunFolder
    >>> row = '{"kind": "train", "step": 3, "loss": 2.5}'
    >>> _ = Path("metrics.jsonl").write_text(row)
    >>> status = read_status(RunFolder("."))
    >>> status.status, status.step, status.loss
    ('stopped', 3, 2.5)
    """

    run: str
    status: str
    step: int
    saved_step: int | None
    total_steps: int | None
    loss: float | None
    eval_loss: float | None
    tokens_per_s: float | None
    time: str | None
    goodput: float | None = None


def read_status(run: RunFolder) -> RunStatus:
    """Read how a run stands, from its log and its checkpoints.

    Raises:
        RunFolderError: The log is not a regular file.
    """
    newest = run.newest_rows(("train", "eval"))
    train, evaluation = newest.get("train", {}), newest.get("eval", {})
    saved_step = max((each.step for each in run.checkpoints()[0]), default=None)
    step = max([saved_step or 0, *(row["step"] for row in newest.values())])
    times = [str(row["time"]) for row in newest.values() if "time" in row]
    return RunStatus(
        run=str(run),
        status=status_of(run, step),
        step=step,
        saved_step=saved_step,
        total_steps=total_steps_of(run),
        loss=number(train.get("loss")),
        eval_loss=number(evaluation.get("eval_loss")),
        tokens_per_s=number(train.get("tokens_per_s")),
        time=max(times, default=None),
        goodput=_kept(run.starts()),
    )


def total_steps_of(run: RunFolder) -> int | None:
    """Return the steps of the whole run, as its newest start planned them."""
    starts = run.starts()
    return starts[-1].total_steps or None if starts else None


def _kept(starts: Sequence[RunStart]) -> float | None:
    """Return the share in kept steps with which the newest start that worked ended."""
    worked = [start for start in starts if not start.is_idle]
    return worked[-1].kept if worked else None


def status_of(run: RunFolder, step: int) -> str:
    """Return `running`, `complete`, `ended with an error` or `stopped`."""
    if run.is_running:
        return "running"
    total_steps = total_steps_of(run)
    if total_steps is not None and step >= total_steps:
        return "complete"
    is_error = run.ending.get("status") == "ended with an error"
    return "ended with an error" if is_error else "stopped"
