"""Totals of a run over its updates, which checkpoints hold: digest and losses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from roxxel_curriculum.digest import add_step, digest_text
from roxxel_curriculum.run_log import LOSS_OF

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_train._step.loss import Tally


@dataclass(slots=True)
class LossMean:
    """The mean loss of an interval of updates, without updates of weight 0.

    The sum is a Python float; losses are added in the order of the updates. Checkpoints
    save the sum, so a resumed run writes the means of an uninterrupted run.
    """

    loss_sum: float = 0.0
    steps: int = 0

    @property
    def mean(self) -> float:
        """The mean; NaN if no update counts."""
        return self.loss_sum / self.steps if self.steps else math.nan

    def add(self, loss: float, weight: float) -> None:
        """Add the loss of an update; a `weight` of 0 means that no token counted."""
        if weight:
            self.loss_sum += loss
            self.steps += 1

    def close(self) -> float:
        """Return the mean and start the next interval."""
        mean = self.mean
        self.loss_sum, self.steps = 0.0, 0
        return mean


@dataclass(slots=True)
class LossMeans:
    """The mean losses since the last metrics row and the last scheduled checkpoint.

    A requested checkpoint does not reset the field `checkpoint`, so requests do not
    change later means.
    """

    metrics_row: LossMean = field(default_factory=LossMean)
    checkpoint: LossMean = field(default_factory=LossMean)

    def to_json(self) -> dict[str, Any]:
        """Return the means as JSON values for a checkpoint."""
        return {
            "interval": asdict(self.metrics_row),
            "since_checkpoint": asdict(self.checkpoint),
        }

    @classmethod
    def from_json(cls, extra: Mapping[str, Any]) -> LossMeans:
        """Return the means of a checkpoint."""
        return cls(LossMean(**extra["interval"]), LossMean(**extra["since_checkpoint"]))


@dataclass(slots=True)
class Ledger:
    """The digest of all updates, and the loss by source since the last metrics row.

    Checkpoints save the totals, so a resumed run writes the rows of an uninterrupted
    run. The sums are Python floats; values are added in the order of the updates.

    Attributes:
        digest: Digest of the steps before this one; None if batches have no tokens.
        losses: Sum of loss times weight, and sum of weight, by source.
    """

    digest: int | None = 0
    losses: dict[str, list[float]] = field(default_factory=dict[str, "list[float]"])

    def add(self, step: int, tally: Tally, sources: Sequence[str]) -> None:
        """Add the update that read batch `step`."""
        if self.digest is not None:
            of_batch = tally.digest
            self.digest = (
                None if of_batch is None else add_step(self.digest, step, of_batch)
            )
        for name, loss, weight in zip(
            sources, tally.loss_sums.tolist(), tally.weights.tolist(), strict=True
        ):
            if weight:
                sums = self.losses.setdefault(name, [0.0, 0.0])
                sums[0] += loss
                sums[1] += weight

    def close(self) -> Ledger:
        """Return the totals so far, and start the next interval of losses."""
        closed = Ledger(self.digest, self.losses)
        self.losses = {}
        return closed

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the fields of a metrics row; losses are in the order of `names`."""
        losses = self.losses
        sources = [source for source in names if source in losses]
        sources += [source for source in losses if source not in names]
        row: dict[str, Any] = {
            LOSS_OF + source: losses[source][0] / losses[source][1]
            for source in sources
        }
        if self.digest is not None:
            row["digest"] = digest_text(self.digest)
        return row

    def to_json(self) -> dict[str, Any]:
        """Return the totals as JSON values for a checkpoint."""
        digest = None if self.digest is None else digest_text(self.digest)
        return {
            "digest": digest,
            "losses": {name: list(sums) for name, sums in self.losses.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Ledger:
        """Return the totals that a checkpoint holds."""
        digest = content["digest"]
        return cls(
            None if digest is None else int(digest, 16),
            {name: list(sums) for name, sums in content["losses"].items()},
        )
