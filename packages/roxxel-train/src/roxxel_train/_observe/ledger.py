"""Totals of a run over its updates: the digest, and the losses by source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from roxxel_curriculum.digest import add_step, digest_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roxxel_train._step.tally import Tally


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
            f"loss/{source}": losses[source][0] / losses[source][1]
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
