"""Where the wall time of a run went: kept steps, waits, saves, restarts, idle time.

This is arithmetic over `metrics.jsonl` alone, so the answer is the same on any cloud,
during the run and years later. A start begins when it opens the run's folder. The time
before that (a queue, a new machine, imports) is idle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.amounts import short_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from roxxel_train.starts import RunStart

    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimedRows:
    """The times of metrics rows, in order: arrays of shape `(n,)`.

    Attributes:
        time: Seconds since the epoch; float64, like every array without another type
            here.
        step: Updates done; an integer or a float.
        is_training: Whether the row is about training, not an evaluation; bool.
        step_s: Mean time of a step since the previous row.
        wait_s: Part of these steps in which the loop waited for data.
        compile_s: Time of compiling since the previous row.
        eval_s: Time of evaluating since the previous row.
        save_s: Time of saving since the previous row.

    Example:
        >>> rows = TimedRows(*np.array([[9.0, 4, 1, 0.5, 0, 0, 0, 0]]).T)
        >>> rows.step, rows.step_s
        (array([4.]), array([0.5]))
    """

    time: Floats
    step: Floats
    is_training: npt.NDArray[Any]
    step_s: Floats
    wait_s: Floats
    compile_s: Floats
    eval_s: Floats
    save_s: Floats

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.time)

    def __getitem__(self, rows: slice | npt.NDArray[np.bool]) -> TimedRows:
        """Return some rows."""
        return TimedRows(*(getattr(self, each.name)[rows] for each in fields(self)))


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
    starts: Iterable[RunStart], rows: TimedRows, until: float | None = None
) -> Goodput:
    """Return where the wall time of a run went.

    Args:
        starts: The starts of the run, in order, as from `RunFolder.starts`. Starts that
            found the run complete do not count.
        rows: The rows of the result, in order.
        until: When the last start ended; None means the time of its newest row.

    Example:
        >>> from roxxel_train.starts import RunStart
        >>> start = RunStart({}, began=0.0, ready=0.0, step=0, ended=10.0)
        >>> row = [9.0, 4, True, 2.0, 1.0, 0.0, 0.0, 0.0]
        >>> print(goodput([start], TimedRows(*np.array([row]).T)))
        70.0 % of 10 s in steps kept; waiting for data 10.0 %, saving 10.0 %, \
other 10.0 %
    """
    starts = [replace(start) for start in starts if not start.is_idle]
    if not starts:
        return Goodput()
    if until is not None:
        starts[-1].ended = max(starts[-1].ended, until)
    sums = dict.fromkeys((each.name for each in fields(Goodput)), 0.0)
    bounds = _bounds(starts, rows)
    for index, (start, then) in enumerate(zip_longest(starts, starts[1:])):
        of_start = rows[bounds[index] : bounds[index + 1]]
        for name, seconds in _of_start(start, of_start, then):
            sums[name] += float(seconds)
    for before, after in pairwise(starts):
        sums["idle"] += max(0.0, after.began - before.ended)
    known = sum(sums.values())
    sums["other"] = max(0.0, starts[-1].ended - starts[0].began - known)
    return Goodput(**sums)


def _bounds(starts: Sequence[RunStart], rows: TimedRows) -> list[int]:
    """Return the first row of each start, and the number of rows."""
    began = np.array([start.began for start in starts])
    index = np.maximum(began.searchsorted(rows.time, "right") - 1, 0)
    # A clock that was set back must not take a row to an earlier start.
    index = np.maximum.accumulate(index)
    return index.searchsorted(range(len(starts) + 1)).tolist()


def _of_start(
    start: RunStart, rows: TimedRows, then: RunStart | None
) -> Iterator[tuple[str, float]]:
    """Yield how the time of one start was spent, and set when it ended.

    `then` is the next start, and `rows` are those of this start that were kept.
    """
    yield "restoring", start.ready - start.began
    # The newest training row, and the newest row of any kind; without rows, the start.
    step, step_s = float(start.step), 0.0
    last_trained = last = start.ready
    training = rows[rows.is_training.astype(bool)]
    if len(training):
        num_steps = np.diff(training.step, prepend=step).clip(min=0)
        seconds = num_steps * training.step_s
        waited = np.minimum(training.wait_s, seconds)
        yield "steps", (seconds - waited).sum()
        yield "waiting", waited.sum()
        yield "compiling", training.compile_s.sum()
        yield "evaluating", training.eval_s.sum()
        yield "saving", training.save_s.sum()
        step, step_s = float(training.step[-1]), float(training.step_s[-1])
        last_trained = float(training.time[-1])
    if len(rows):
        last = float(rows.time[-1])
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
