"""The clock of a run: tokens and training time over its steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from roxxel.report._series import MOST_POINTS, Clock

if TYPE_CHECKING:
    from roxxel_train.columns import Table


def clock_of(train: Table, first_step: int, first_tokens: int) -> Clock:
    """Return the clock of a run, from its training rows.

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
