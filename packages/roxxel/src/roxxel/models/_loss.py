"""The loss of a decoder: cross-entropy of the next token within each document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from roxxel_store.arguments import as_integer

from roxxel.models._llama import logits_of

if TYPE_CHECKING:
    from roxxel.models._llama import Llama


def next_token_loss(
    model: Llama,
    batch: jax.Array | Mapping[str, jax.Array],
    *,
    z_loss: float = 0.0,
    loss_chunk: int | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the mean loss of the next tokens, and values for the trainer's log.

    With `segment_ids`, attention stays inside documents, and the first token of a
    document and padding (segment 0) do not count as targets.

    Args:
        model: The decoder.
        batch: Token ids, integers, shape (B, T), or a mapping with the field `tokens`
            and any of `segment_ids`, `positions` and `loss_mask`, all of this shape.
            `loss_mask` weights each token as a target. Other fields are ignored.
        z_loss: Weight of the squared logarithm of the softmax's denominator (Chowdhery
            et al., PaLM, 2022), which keeps logits from drifting; 1e-4 is usual.
        loss_chunk: Columns whose logits are in memory at the same time. The backward
            pass computes these logits again. None keeps the logits of all columns.

    Returns:
        A float32 scalar and a dict. `loss_weight` is the number of targets that count.
        `row_loss` and `row_weight`, of shape (B,), are the mean cross-entropy and the
        number of targets of each row; the trainer logs the loss of each source from
        them. With `z_loss`, the dict also has `cross_entropy`, the loss without the
        z-loss term.
    """
    fields = batch if isinstance(batch, Mapping) else {"tokens": batch}
    tokens, segments = fields["tokens"], fields.get("segment_ids")
    if tokens.shape[1] < 2:
        raise ValueError(
            f"tokens have {tokens.shape[1]} columns, so no token has a next one; "
            "use sequences of 2 tokens or more"
        )
    weights = jnp.ones(tokens[:, 1:].shape, jnp.float32)
    if segments is not None:
        follows = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        weights *= follows
    if "loss_mask" in fields:
        weights *= fields["loss_mask"][:, 1:]
    positions = fields.get("positions")
    hidden = model.hidden(
        tokens[:, :-1],
        None if segments is None else segments[:, :-1],
        None if positions is None else positions[:, :-1],
    )
    sums = _sums(hidden, model.output_matrix(), tokens[:, 1:], weights, loss_chunk)
    row_weight = weights.sum(axis=1)
    count = row_weight.sum()
    cross_entropy, z_term = (total.sum() / jnp.maximum(count, 1) for total in sums)
    logged = {
        "loss_weight": count,
        "row_loss": sums[0] / jnp.maximum(row_weight, 1),
        "row_weight": row_weight,
    }
    if not z_loss:
        return cross_entropy, logged
    return cross_entropy + z_loss * z_term, {**logged, "cross_entropy": cross_entropy}


def _sums(
    hidden: jax.Array,
    matrix: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    chunk: int | None,
) -> tuple[jax.Array, jax.Array]:
    """Return two sums for each row: cross-entropy and squared log-denominator."""
    length = targets.shape[1]
    if chunk is None:
        return _chunk_sums(matrix, hidden, targets, weights)
    as_integer("loss_chunk", chunk, 1)
    num_chunks = -(-length // chunk)
    missing = num_chunks * chunk - length

    def cut(x: jax.Array) -> jax.Array:
        # Added columns have weight 0. Rows stay whole, so devices keep their rows.
        padding = [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)
        parts = jnp.pad(x, padding).reshape(x.shape[0], num_chunks, chunk, *x.shape[2:])
        return jnp.moveaxis(parts, 1, 0)

    @partial(jax.checkpoint, prevent_cse=False)
    def sums_of(matrix: jax.Array, part: Any) -> tuple[jax.Array, jax.Array]:
        return _chunk_sums(matrix, *part)

    def add(sums: Any, part: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, sums_of(matrix, part)), None

    zeros = (jnp.zeros(targets.shape[0]), jnp.zeros(targets.shape[0]))
    return jax.lax.scan(add, zeros, tuple(map(cut, (hidden, targets, weights))))[0]


def _chunk_sums(
    matrix: jax.Array, hidden: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    losses, log_sum = _of_tokens(hidden, matrix, targets)
    return (losses * weights).sum(axis=1), (log_sum**2 * weights).sum(axis=1)


@jax.custom_vjp
def _of_tokens(
    hidden: jax.Array, matrix: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return cross-entropy and log-denominator of each token, float32, shape (B, T).

    The gradient of the logits is rounded to the dtype of `hidden`. JAX would keep this
    gradient in float32, and a product of a float32 and a bfloat16 array runs in
    float32, at half the rate of a GPU's bfloat16 products or less.
    """
    return _of_tokens_forward(hidden, matrix, targets)[0]


def _of_tokens_forward(
    hidden: jax.Array, matrix: jax.Array, targets: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
    logits = logits_of(hidden, matrix)
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (log_sum - chosen, log_sum), (hidden, matrix, targets, logits, log_sum)


def _of_tokens_backward(
    kept: tuple[jax.Array, ...], changes: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, None]:
    hidden, matrix, targets, logits, log_sum = kept
    of_loss, of_log_sum = changes
    probabilities = jnp.exp(logits - log_sum[..., None])
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    change = probabilities * (of_loss + of_log_sum)[..., None]
    change -= jnp.where(is_target, of_loss[..., None], 0)
    change = change.astype(hidden.dtype)
    of_matrix = jnp.einsum("btv,btc->vc", change, hidden)
    return change @ matrix, of_matrix, None


_of_tokens.defvjp(_of_tokens_forward, _of_tokens_backward)
