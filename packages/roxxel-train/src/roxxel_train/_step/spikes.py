"""Leave out the updates that are spikes, inside the compiled step.

The window of earlier values is part of the compiled state. So no device waits for the
host, all processes decide alike, and a checkpoint continues the window bit for bit. The
rule is also the rule by which a report marks spikes. It uses medians, because neither a
spike nor the fall of the loss at the start of a run moves them much.
"""

from __future__ import annotations

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

_LEAST_DEVIATION = 1e-3
"""Smallest deviation, as a share of the median: without it, a flat loss would have
spikes.
"""

Window = dict[str, Any]
"""`values` of shape (names, window), `count` of values since the window began, spikes
`in_a_row`, and `skipped`, the number of updates that the run did not apply."""


def begin(rule: SpikeRule, mesh: Mesh) -> Window:
    """Return an empty window, replicated over the mesh."""
    return _placed(
        mesh,
        np.zeros((len(rule.what), rule.window)),
        dict.fromkeys(("count", "in_a_row", SKIPPED), 0),
    )


def begin_phase(rule: SpikeRule, mesh: Mesh, window: Window) -> Window:
    """Return an empty window that keeps the count of skipped updates."""
    return {**begin(rule, mesh), SKIPPED: window[SKIPPED]}


def resume(rule: SpikeRule, mesh: Mesh, past: Mapping[str, Any]) -> Window:
    """Return the window of a checkpoint, from the result of `to_json`.

    The window is empty if another rule measured its values.
    """
    empty = begin(rule, mesh)
    counts = {name: past[name] for name in empty if name != "values"}
    held = _placed(mesh, np.asarray(past["values"]), counts)
    if past["what"] != [*rule.what] or held["values"].shape != empty["values"].shape:
        return begin_phase(rule, mesh, held)
    return held


def to_json(rule: SpikeRule, window: Window) -> dict[str, Any]:
    """Return a window as JSON values for a checkpoint."""
    plain = {name: np.asarray(value).tolist() for name, value in window.items()}
    return {"what": [*rule.what], **plain}


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
    least = _LEAST_DEVIATION * jnp.abs(median)
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


def _placed(mesh: Mesh, values: Any, counts: Mapping[str, int]) -> Window:
    window = {name: np.int32(count) for name, count in counts.items()}
    return jax.device_put(
        {"values": values.astype(np.float32), **window},
        NamedSharding(mesh, PartitionSpec()),
    )
