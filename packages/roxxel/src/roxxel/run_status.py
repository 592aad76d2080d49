"""Says in a few facts how a run stands, for `roxxel ls` and the report; without JAX."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roxxel_train.run_folder import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_train import RunFolder
    from roxxel_train.run_folder import LogEntry

_START = re.compile(
    r"starts: (\d+) steps|resumed from step \d+ of (\d+)|already complete: \d+ of (\d+)"
)

_SPENT = re.compile(r"wall time: (\d+(?:\.\d+)?) % of ")


@dataclass(frozen=True)
class RunStatus:
    """How a run stands.

    Attributes:
        run: Folder or URL of the run.
        status: As for `status_of`.
        step: Updates done, from the newest row of the log.
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
    """Read how a run stands, from its logs and its checkpoints.

    Raises:
        RunFolderError: A log is not a regular file.
    """
    newest = run.newest_rows()
    train, evaluation = newest.get("train", {}), newest.get("eval", {})
    entries = run.log()
    starts = starts_of(entries)
    total_steps = total_steps_of(starts)
    step = max((row["step"] for row in newest.values()), default=0)
    times = [str(row["time"]) for row in newest.values() if "time" in row]
    return RunStatus(
        run=str(run),
        status=status_of(run, step, total_steps, entries),
        step=step,
        saved_step=max((each.step for each in run.checkpoints()[0]), default=None),
        total_steps=total_steps,
        loss=number(train.get("loss")),
        eval_loss=number(evaluation.get("eval_loss")),
        tokens_per_s=number(train.get("tokens_per_s")),
        time=max(times, default=None),
        goodput=goodput_of(entries),
    )


def starts_of(entries: Sequence[LogEntry]) -> list[re.Match[str]]:
    """Return the starts of a run, resumes included, in the order of the log."""
    return [found for entry in entries if (found := _START.match(entry.text))]


def goodput_of(entries: Sequence[LogEntry]) -> float | None:
    """Return the share in kept steps that the newest start logged; None without one."""
    for entry in reversed(entries):
        if (spent := _SPENT.match(entry.text)) is not None:
            return float(spent[1]) / 100
        start = _START.match(entry.text)
        if start is not None and start[3] is None:  # It has done something.
            return None
    return None


def total_steps_of(starts: Sequence[re.Match[str]]) -> int | None:
    """Return the steps of the whole run, from the newest start in the log."""
    return int(starts[-1][starts[-1].lastindex or 0]) if starts else None


def status_of(
    run: RunFolder, step: int, total_steps: int | None, entries: Sequence[LogEntry]
) -> str:
    """Return `running`, `complete`, `ended with an error` or `stopped`."""
    if run.is_running:
        return "running"
    if total_steps is not None and step >= total_steps:
        return "complete"
    if entries and entries[-1].level == "ERROR":
        return "ended with an error"
    return "stopped"
