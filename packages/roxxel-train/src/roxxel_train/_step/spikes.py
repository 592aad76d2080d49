"""Leave out the updates that are spikes, inside the compiled step.

The window of earlier values is part of the compiled state. So no device waits for the
host, all processes decide alike, and a checkpoint continues the window bit for bit. The
rule uses medians, because neither a spike nor the fall of the loss at the start of a
run moves them much. A report marks rows of the log by the same numbers, but its window
begins with fewer rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from roxxel_train._step.loss import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jax.sharding import Mesh

    from roxxel_train._step.loss import Scalars
    from roxxel_train._step.spike_rule import SpikeRule

MOST_IN_A_ROW = 8
"""After this many spikes in a row the next update is applied, and the window begins
anew: values that stay high are a new level, not a spike.
"""

WINDOW = 2
"""The key of the window in a tree of arrays."""

_KEY = "spikes"  # in checkpoints

Window = dict[str, Any]
"""`values` of shape (names, window), `count` of values since the window began, spikes
`in_a_row`, and `skipped`, the number of updates that the run did not apply."""


@dataclass(frozen=True)
class SpikeWindow:
    """Keeps the window among the arrays of a run, and in its checkpoints.

    Without a rule there is no window, and the methods leave the arrays unchanged.
    """

    rule: SpikeRule | None
    mesh: Mesh

    def begin(self, arrays: dict[Any, Any]) -> None:
        """Add an empty window to the arrays."""
        if self.rule is not None:
            arrays[WINDOW] = _empty(self.rule, self.mesh)

    def begin_phase(self, arrays: dict[Any, Any]) -> None:
        """Empty the window at a new phase, which has another blend or length.

        The window keeps the count of skipped updates.
        """
        if self.rule is not None:
            skipped = arrays[WINDOW][SKIPPED]
            arrays[WINDOW] = {**_empty(self.rule, self.mesh), SKIPPED: skipped}

    def resume(self, arrays: dict[Any, Any], extra: Mapping[str, Any]) -> None:
        """Continue the window of a checkpoint, if the checkpoint has one.

        The window is empty if another rule measured its values.
        """
        past = extra.get(_KEY)
        if self.rule is None or past is None:
            return
        empty = _empty(self.rule, self.mesh)
        counts = {name: past[name] for name in empty if name != "values"}
        held = _placed(self.mesh, np.asarray(past["values"]), counts)
        is_same = held["values"].shape == empty["values"].shape
        if past["what"] != [*self.rule.what] or not is_same:
            held = {**empty, SKIPPED: held[SKIPPED]}
        arrays[WINDOW] = held

    def to_json(self, arrays: dict[Any, Any]) -> dict[str, Any]:
        """Return the window's fields for a checkpoint; empty without a window."""
        if self.rule is None:
            return {}
        plain = {name: np.asarray(x).tolist() for name, x in arrays[WINDOW].items()}
        return {_KEY: {"what": [*self.rule.what], **plain}}

    def so_far(self, arrays: dict[Any, Any]) -> tuple[int, int]:
        """Return how many updates the run has left out, and how many in a row now."""
        if self.rule is None:
            return 0, 0
        window = arrays[WINDOW]
        return int(window[SKIPPED]), int(window["in_a_row"])


def judge(
    rule: SpikeRule, window: Window, scalars: Scalars
) -> tuple[jax.Array, Window]:
    """Return whether to leave an update out, and the window after the update.

    Raises:
        ValueError: The step does not return one of the values of the rule.
    """
    for name in rule.what:
        if name not in scalars:
            raise ValueError(
                f"skip_spikes watches {name!r}, but the step returns "
                f"{', '.join(scalars)}; name some of these as what, or return it"
            )
    values = jnp.stack([scalars[name].astype(jnp.float32) for name in rule.what])
    held, count = window["values"], window["count"]
    median = jnp.median(held, axis=1)
    deviation = jnp.median(jnp.abs(held - median[:, None]), axis=1)
    least = rule.least_deviation * jnp.abs(median)
    bound = median + rule.deviations * jnp.maximum(deviation, least)
    # A gradient norm of NaN is no smaller than a bound, so it is a spike. A loss of NaN
    # ends the run when the host reads it: the model itself may be broken.
    is_spike = (count >= rule.window) & ~(values <= bound).all()
    skip = is_spike & (window["in_a_row"] < MOST_IN_A_ROW)
    count = jnp.where(is_spike & ~skip, 0, count)
    pushed = held.at[:, count % rule.window].set(values)
    return skip, {
        "values": jnp.where(skip, held, pushed),
        "count": count + jnp.where(skip, 0, 1),
        "in_a_row": jnp.where(skip, window["in_a_row"] + 1, 0),
        SKIPPED: window[SKIPPED] + skip.astype(jnp.int32),
    }


def _empty(rule: SpikeRule, mesh: Mesh) -> Window:
    """Return an empty window, replicated over the mesh."""
    return _placed(
        mesh,
        np.zeros((len(rule.what), rule.window)),
        dict.fromkeys(("count", "in_a_row", SKIPPED), 0),
    )


def _placed(mesh: Mesh, values: Any, counts: Mapping[str, int]) -> Window:
    window = {name: np.int32(count) for name, count in counts.items()}
    return jax.device_put(
        {"values": values.astype(np.float32), **window},
        NamedSharding(mesh, PartitionSpec()),
    )
