"""The window of `skip_spikes`: among a run's arrays, and in its checkpoints.

Without a rule there is no window, and the methods leave the arrays unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_train._step import spikes
from roxxel_train._step.loss import SKIPPED
from roxxel_train._step.step import WINDOW

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jax.sharding import Mesh

    from roxxel_train._step.spike_rule import SpikeRule
    from roxxel_train._step.step import Tree

_KEY = "spikes"


@dataclass(frozen=True)
class SpikeWindow:
    """Changes the window in the arrays of a run, and keeps it in checkpoints."""

    rule: SpikeRule | None
    mesh: Mesh

    def begin(self, arrays: Tree) -> None:
        """Add an empty window to the arrays."""
        if self.rule is not None:
            arrays[WINDOW] = spikes.begin(self.rule, self.mesh)

    def begin_phase(self, arrays: Tree) -> None:
        """Empty the window at a new phase, which has another blend or length."""
        if self.rule is not None:
            window = arrays[WINDOW]
            arrays[WINDOW] = spikes.begin_phase(self.rule, self.mesh, window)

    def resume(self, arrays: Tree, extra: Mapping[str, Any]) -> None:
        """Continue the window of a checkpoint, if the checkpoint has one."""
        if self.rule is not None and extra.get(_KEY) is not None:
            arrays[WINDOW] = spikes.resume(self.rule, self.mesh, extra[_KEY])

    def to_json(self, arrays: Tree) -> dict[str, Any]:
        """Return the window's fields for a checkpoint; empty without a window."""
        if self.rule is None:
            return {}
        return {_KEY: spikes.to_json(self.rule, arrays[WINDOW])}

    def skipped(self, arrays: Tree) -> int:
        """Return the number of updates that the run has left out so far."""
        return 0 if self.rule is None else int(arrays[WINDOW][SKIPPED])
