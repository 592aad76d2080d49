"""Means of the loss since the last row and since the last checkpoint.

The sums are Python floats, added in the order of the updates, and part of every
checkpoint. So a resumed run writes the same means as one that was never stopped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class LossMean:
    """The mean loss of an interval.

    Attributes:
        loss_sum: Sum of the losses.
        steps: Number of the losses.
    """

    loss_sum: float = 0.0
    steps: int = 0

    @property
    def mean(self) -> float:
        """The mean, NaN without an update."""
        return self.loss_sum / self.steps if self.steps else math.nan

    def add(self, loss: float) -> None:
        """Count one update."""
        self.loss_sum += loss
        self.steps += 1

    def close(self) -> float:
        """Return the mean and start the next interval."""
        mean = self.mean
        self.loss_sum, self.steps = 0.0, 0
        return mean


@dataclass(slots=True)
class LossMeans:
    """The two intervals that are open at any step.

    Attributes:
        row: Since the last row of metrics.
        checkpoint: Since the last checkpoint that was due by `checkpoint_every`. A
            checkpoint on request does not start a new interval, so it changes nothing
            in later ones.
    """

    row: LossMean = field(default_factory=LossMean)
    checkpoint: LossMean = field(default_factory=LossMean)

    def add(self, loss: float) -> None:
        """Count one update."""
        self.row.add(loss)
        self.checkpoint.add(loss)

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "interval": {"loss_sum": self.row.loss_sum, "steps": self.row.steps},
            "since_checkpoint": {
                "loss_sum": self.checkpoint.loss_sum,
                "steps": self.checkpoint.steps,
            },
        }

    @classmethod
    def from_json(cls, extra: Mapping[str, Any]) -> LossMeans:
        """Return the intervals that `to_json` described.

        Checkpoints of version 0.1 lack the second interval.
        """
        return cls(
            LossMean(**extra["interval"]), LossMean(**extra.get("since_checkpoint", {}))
        )
