"""Where the wall time of a run went: kept steps, waits, saves, restarts, idle time.

This is arithmetic over `metrics.jsonl` alone, so the answer is the same on any cloud,
during the run and years later. A start begins when it opens the run's folder. The time
before that (a queue, a new machine, imports) is idle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from roxxel_store.screen import short_duration

from roxxel_train.columns import TIMED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from roxxel_train.columns import Columns, Table
    from roxxel_train.starts import RunStart

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Goodput:
    """Seconds of a run's wall time, by what they were spent on.

    Attributes:
        steps: Steps that are part of the result, without their waits.
        waiting: Waits for data in these steps.
        compiling: Waits for the compiler.
        saving: Saves, as far as the loop waits for them, and the end of a start.
        restoring: Restores of checkpoints.
        evaluating: Evaluations.
        lost: Steps that a restart repeats: from the last kept row to the newest row
            that was given up.
        idle: Time in which nothing ran: from the last sign of a start to the next
            start.
        other: All other time, such as preparing the first step.

    Example:
        >>> print(Goodput(steps=90.0, saving=4.0, lost=6.0))
        90.0 % of 100 s in steps kept; lost to restarts 6.0 %, saving 4.0 %
    """

    steps: float = 0.0
    waiting: float = 0.0
    compiling: float = 0.0
    saving: float = 0.0
    restoring: float = 0.0
    evaluating: float = 0.0
    lost: float = 0.0
    idle: float = 0.0
    other: float = 0.0

    @property
    def seconds(self) -> float:
        """Wall time from the first start to the last sign of the run."""
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def share(self) -> float:
        """Share of the wall time in kept steps; 0 for a run without a row."""
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of everything except kept steps, by an English name."""
        words = {
            "waiting": "waiting for data",
            "lost": "lost to restarts",
            "idle": "idle between starts",
        }
        return {
            words.get(each.name, each.name): getattr(self, each.name)
            for each in fields(self)
            if each.name != "steps"
        }

    def __str__(self) -> str:
        """Return all shares in one line, the largest part first."""
        return self.line(len(self.parts))

    def line(self, most: int) -> str:
        """Return the share of kept steps and the `most` largest others in one line."""
        parts = sorted(self.parts.items(), key=lambda part: -part[1])[:most]
        shown = [
            f"{name} {share:.1%}".replace("%", " %")
            for name, seconds in parts
            if (share := seconds / self.seconds if self.seconds else 0.0) >= _LEAST
        ]
        head = f"{self.share:.1%} of {short_duration(self.seconds)} in steps kept"
        return "; ".join([head.replace("%", " %"), *filter(None, [", ".join(shown)])])


_LEAST = 0.0005
"""Smallest share to show: a smaller one would read 0.0 %."""


def goodput(
    starts: Iterable[RunStart], columns: Columns, until: float | None = None
) -> Goodput:
    """Return where the wall time of a run went.

    Args:
        starts: The starts of the run, in order, as from `RunFolder.starts`. Starts that
            found the run complete do not count.
        columns: The rows of the result.
        until: When the last start ended; None means the time of its newest row.

    Example:
        >>> from roxxel_train.columns import read_columns
        >>> from roxxel_train.starts import RunStart
        >>> start = RunStart({}, began=0.0, ready=0.0, step=0, ended=10.0)
        >>> row = {"kind": "train", "time": "1970-01-01T00:00:09Z", "step": 4}
        >>> row |= {"step_s": 2.0, "wait_s": 1.0}
        >>> print(goodput([start], read_columns([row])))
        70.0 % of 10 s in steps kept; waiting for data 10.0 %, saving 10.0 %, \
other 10.0 %
    """
    starts = [replace(start) for start in starts]
    if until is not None and starts and not starts[-1].is_idle:
        starts[-1].ended = max(starts[-1].ended, until)
    trained, evaluated = map(_timed, (columns.train, columns.evaluations))
    parts = zip(starts, _parts(starts, trained), _parts(starts, evaluated), strict=True)
    # An owed evaluation may be made days later, by a start that trains nothing.
    parts = [part for part in parts if not part[0].is_idle]
    starts = [start for start, *_ in parts]
    if not starts:
        return Goodput()
    sums = dict.fromkeys((each.name for each in fields(Goodput)), 0.0)
    nexts = [*starts[1:], None]
    for (start, train, others), then in zip(parts, nexts, strict=True):
        for name, seconds in _of_start(start, train, others["time"], then):
            sums[name] += float(seconds)
    for before, after in pairwise(starts):
        sums["idle"] += max(0.0, after.began - before.ended)
    known = sum(sums.values())
    sums["other"] = max(0.0, starts[-1].ended - starts[0].began - known)
    return Goodput(**sums)


def step_seconds(
    columns: Columns, starts: Sequence[RunStart], first_step: int = 0
) -> Floats:
    """Return the seconds of the steps from each training row back to the row before it.

    Waits for data are included, as in the sum of `steps` and `waiting`.

    Args:
        columns: The rows of the result.
        starts: The starts of the run, in order.
        first_step: Step at which the run begins, above 0 in a branch.

    Example:
        >>> from roxxel_train.columns import read_columns
        >>> row = {"kind": "train", "step": 4, "step_s": 2.0}
        >>> step_seconds(read_columns([row]), [])
        array([8.])
    """
    train = columns.train
    steps = np.append(first_step, train.steps)
    step_s = np.nan_to_num(train.full("step_s", 0.0))
    spent = np.maximum(np.diff(steps), 1) * step_s
    for start in starts:
        # The first row of a start has the mean time of the steps since the start. The
        # steps from the row before it took what those before them did, as `_of_start`
        # counts its `unlogged` steps.
        row = int(np.searchsorted(train.steps, start.step))
        if not start.is_part or row == len(train):
            continue
        before, after = start.step - steps[row], steps[row + 1] - start.step
        if before > 0 and after > 0:
            usual = step_s[row - 1] if row else 0.0
            spent[row] = before * usual + after * step_s[row]
    return spent


def _timed(table: Table) -> dict[str, Floats]:
    """Return time, step and seconds of the rows that have a time, each as a column."""
    time = table.full("time", np.nan)
    is_timed = ~np.isnan(time)
    # One column at a time: those of a long run are most of a report's memory.
    columns = {"time": time[is_timed], "step": table.steps[is_timed].astype(float)}
    for name in TIMED:
        columns[name] = np.nan_to_num(table.full(name, 0.0)[is_timed], copy=False)
    return columns


def _parts(
    starts: Sequence[RunStart], rows: Mapping[str, Floats]
) -> Iterator[dict[str, Floats]]:
    """Yield the rows of each start."""
    began = np.array([start.began for start in starts])
    index = np.maximum(began.searchsorted(rows["time"], "right") - 1, 0)
    # A clock that was set back must not take a row to an earlier start.
    index = np.maximum.accumulate(index)
    for first, stop in pairwise(index.searchsorted(range(len(starts) + 1))):
        yield {name: column[first:stop] for name, column in rows.items()}


def _of_start(
    start: RunStart,
    rows: Mapping[str, Floats],
    evaluated: Floats,
    then: RunStart | None,
) -> Iterator[tuple[str, float]]:
    """Yield how the time of one start was spent, and set when it ended.

    `then` is the next start, `rows` are the training rows of this start that were kept,
    and `evaluated` the times of its rows of evaluations.
    """
    yield "restoring", start.ready - start.began
    # The newest training row, and the newest row of any kind; without rows, the start.
    step, step_s = float(start.step), 0.0
    last_trained = start.ready
    if len(rows["time"]):
        num_steps = np.diff(rows["step"], prepend=step).clip(min=0)
        seconds = num_steps * rows["step_s"]
        waited = np.minimum(rows["wait_s"], seconds)
        yield "steps", (seconds - waited).sum()
        yield "waiting", waited.sum()
        yield "compiling", rows["compile_s"].sum()
        yield "evaluating", rows["eval_s"].sum()
        yield "saving", rows["save_s"].sum()
        step, step_s = float(rows["step"][-1]), float(rows["step_s"][-1])
        last_trained = float(rows["time"][-1])
    newest = [float(time) for time in (*rows["time"][-1:], *evaluated[-1:])]
    last = max(newest, default=start.ready)
    # No training row has the time of a last evaluation.
    yield "evaluating", max(0.0, last - last_trained)
    # Steps up to the checkpoint from which the next start went on have no row.
    unlogged = 0.0 if then is None else max(0, then.step - step) * step_s
    if start.given_up_until > last:
        # The time after the last kept row went into steps that the next start keeps,
        # up to its checkpoint, and into steps that it repeats.
        gone = start.given_up_until - last
        unlogged = min(unlogged, gone)
        yield "lost", gone - unlogged
        last = start.given_up_until
    elif last > start.ready:
        # Nothing was given up, so the last save took what those steps leave.
        unlogged = min(unlogged, max(0.0, start.ended - last))
        yield "saving", max(0.0, start.ended - last - unlogged)
    yield "steps", unlogged
    # The idle time until the next start begins here, perhaps with a given-up row.
    start.ended = max(start.ended, last)
