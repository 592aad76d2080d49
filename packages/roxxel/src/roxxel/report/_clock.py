"""The clock of a run: tokens and training time over its steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from roxxel.report._series import MOST_POINTS, Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_train.columns import Table
    from roxxel_train.starts import RunStart


def clock_of(
    train: Table, starts: Sequence[RunStart], first_step: int, first_tokens: int
) -> Clock:
    """Return the clock of a run, from its training rows and its starts.

    All steps of a phase read the same number of tokens, so interpolation is exact
    unless a phase begins between two rows. A thinned clock keeps the rows at both sides
    of the beginning of a phase.
    """
    steps = np.append(first_step, train.steps)
    counts = train.full("tokens", math.nan)
    is_counted = counts >= 0
    tokens = np.interp(
        steps,
        np.append(first_step, train.steps[is_counted]),
        np.append(first_tokens, counts[is_counted]),
    )
    step_s = np.nan_to_num(train.full("step_s", 0.0))
    spent = np.maximum(np.diff(steps), 1) * step_s
    for start in starts:
        # The first row of a start has the mean time of the steps since the start. The
        # steps from the row before it took what those before them did, as in goodput.
        row = int(np.searchsorted(train.steps, start.step))
        before = start.step - steps[row]
        if (
            start.is_part
            and row < len(train)
            and 0 < before < steps[row + 1] - steps[row]
        ):
            usual = step_s[row - 1] if row else 0.0
            after = steps[row + 1] - start.step
            spent[row] = before * usual + after * step_s[row]
    passed = np.append(0.0, np.cumsum(spent))
    every = -(-len(steps) // MOST_POINTS)
    phases = train.full("phase", -1.0)
    begins = 1 + np.flatnonzero(phases[1:] != phases[:-1])
    kept = np.unique(
        np.concatenate(
            [
                np.arange(0, len(steps), every),
                [len(steps) - 1],
                begins,
                begins + 1,
            ]
        ).astype(np.intp)
    )
    return Clock(
        steps[kept].tolist(),
        [round(x) for x in tokens[kept].tolist()] if is_counted.any() else [],
        [round(x, 3) for x in passed[kept].tolist()] if passed[-1] else [],
    )
