"""The numbers that an update returns about its batch: digest, and loss by source.

The devices pack all numbers into one small array, so a step costs one transfer to the
host. The host unpacks the array when it reads the loss of the same update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from roxxel_curriculum.digest import device_digest, from_halves

from roxxel_train._step.loss import ROW_LOSS, ROW_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from roxxel_train._step.fed import Fed

_NUM_HEAD = 3
"""Number of values before the sums: the digest, and whether there is one."""


@dataclass(frozen=True)
class Tally:
    """The unpacked numbers of one update.

    `loss_sums` and `weights` have one value for each source: the sum of `row_weight *
    row_loss` and of `row_weight` over the rows of the source. Both are 0 if the loss
    function returns no `row_loss`. `digest` is the `batch_digest`, or None if the batch
    has no tokens.
    """

    digest: int | None
    loss_sums: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]


def tally(fed: Fed, rows: Mapping[str, jax.Array], num_sources: int) -> jax.Array:
    """Return the tally of an update as one uint32 array, inside a jitted function.

    `rows` has what the loss function returned for each row: nothing, `row_loss`, or
    `row_loss` and `row_weight`.
    """
    tokens = fed.batch.get("tokens") if isinstance(fed.batch, dict) else fed.batch
    if tokens is None:
        head = jnp.zeros(_NUM_HEAD, jnp.uint32)
    else:
        head = jnp.append(device_digest(tokens), jnp.uint32(1))
    sums = jnp.zeros((2, num_sources), jnp.float32)
    if rows:
        sums = _sums(fed, rows, num_sources)
    return jnp.append(head, jax.lax.bitcast_convert_type(sums.ravel(), jnp.uint32))


def read_tally(packed: npt.NDArray[np.uint32]) -> Tally:
    """Unpack the result of `tally`."""
    *halves, has_digest = packed[:_NUM_HEAD]
    loss_sums, weights = packed[_NUM_HEAD:].view(np.float32).reshape(2, -1)
    return Tally(from_halves(halves) if has_digest else None, loss_sums, weights)


def without_losses(packed: jax.Array) -> jax.Array:
    """Return the tally of an update whose losses do not count, only its tokens."""
    return packed.at[_NUM_HEAD:].set(0)


def check_names(scalars: Mapping[str, Any], sources: Sequence[str]) -> None:
    """Check that no metric of the user is named like a loss by source."""
    for source in sources:
        if f"loss/{source}" in scalars:
            raise TypeError(
                f"loss_fn returned {ROW_LOSS!r} and a metric named 'loss/{source}', "
                "under which the trainer logs the loss of this source; rename the "
                "metric"
            )


def _sums(fed: Fed, rows: Mapping[str, jax.Array], num_sources: int) -> jax.Array:
    """Return the sums of loss and of weight by source, shape `(2, num_sources)`."""
    for name, values in rows.items():
        if values.shape != fed.source.shape:
            raise TypeError(
                f"loss_fn returned {name!r} of shape {values.shape} for a batch of "
                f"{fed.source.shape[0]} rows; return one value for each row"
            )
    # By default the weight of a row is its number of tokens: means are over tokens, and
    # after an edit two metrics rows may have phases of different lengths between them.
    columns = jax.tree.leaves(fed.batch)[0].shape[1]
    weight = rows.get(ROW_WEIGHT, jnp.full(fed.source.shape, columns))
    weight = weight.astype(jnp.float32)
    # The mean loss of a fully masked row may be 0 / 0, and NaN * 0 is NaN.
    loss = jnp.where(weight > 0, rows[ROW_LOSS].astype(jnp.float32) * weight, 0)
    is_of = fed.source[None, :] == jnp.arange(num_sources)[:, None]
    return jnp.where(is_of, jnp.stack([loss, weight])[:, None, :], 0).sum(-1)
