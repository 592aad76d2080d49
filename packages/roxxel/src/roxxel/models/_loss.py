"""The loss of a decoder: cross-entropy of the next token within each document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from roxxel_store.arguments import as_integer

from roxxel.models._attention import Columns
from roxxel.models._llama import logits_of

if TYPE_CHECKING:
    from roxxel.models._llama import Llama

# Products with fewer tokens do not keep a large GPU busy: on an H200, 65 536 tokens in
# four chunks take the time of one chunk, and 14 GB less.
_CHUNK_TOKENS = 16384


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
        loss_chunk: Number of columns whose logits are in memory at the same time. None
            means as many as give 16 384 tokens per device. The number changes only the
            memory: the loss computes the same products with any.

    Returns:
        A float32 scalar and a dict. `loss_weight` is the sum of the weights of targets.
        `row_loss` and `row_weight`, of shape (B,), are the mean cross-entropy and the
        weight of each row; the trainer logs the loss of each source from
        them. With `z_loss`, the dict also has `cross_entropy`, the loss without the
        z-loss term. Weights of targets have no gradient.
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
    row_weight = weights.sum(axis=1)
    count = row_weight.sum()
    shares = weights / _above_0(count)
    if loss_chunk is not None:
        as_integer("loss_chunk", loss_chunk, 1)
    columns = Columns.of(model.config, *hidden.shape[:2])
    chunks = Chunks.of(loss_chunk, columns, hidden.shape[1])
    loss, losses = _loss(
        hidden, model.output_matrix(), tokens[:, 1:], shares, z_loss, chunks
    )
    sums = (losses * weights).sum(axis=1)
    logged = {
        "loss_weight": count,
        "row_loss": sums / _above_0(row_weight),
        "row_weight": row_weight,
    }
    if not z_loss:
        return loss, logged
    return loss, {**logged, "cross_entropy": sums.sum() / _above_0(count)}


def _above_0(weight: jax.Array) -> jax.Array:
    """Return a sum of weights as a divisor; the mean of nothing is then 0."""
    return jnp.where(weight > 0, weight, 1)


def _loss_alone(
    hidden: jax.Array,
    matrix: jax.Array,
    targets: jax.Array,
    shares: jax.Array,
    z_loss: float,
    chunks: Chunks,
) -> tuple[jax.Array, jax.Array]:
    """Return the loss, and the cross-entropy of each token, float32, shape (B, T).

    `shares` are the weights of the targets, divided by their sum, and have no
    gradient.

    If a gradient is needed, the forward pass computes it, chunk by chunk. So no pass
    computes logits a second time, and none keeps them.
    """

    def of_part(part: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        hidden, targets = part
        return _of_logits(hidden, matrix, targets)[1:]

    parts = jax.lax.map(of_part, chunks.cut((hidden, targets)))
    losses, log_sums = chunks.joined(parts, targets.shape[1])
    return _total(losses, log_sums, shares, z_loss), losses


def _loss_forward(
    hidden: Any,
    matrix: Any,
    targets: Any,
    shares: Any,
    z_loss: float,
    chunks: Chunks,
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
    arrays = (hidden.value, matrix.value, targets.value)
    losses, log_sums, *gradients = _with_gradients(
        *arrays, shares.value, z_loss, chunks
    )
    loss = _total(losses, log_sums, shares.value, z_loss)
    return (loss, losses), (*gradients, *arrays)


def _loss_backward(
    _z_loss: float,
    chunks: Chunks,
    kept: tuple[jax.Array, ...],
    changes: tuple[Any, Any],
) -> tuple[jax.Array, jax.Array, None, None]:
    of_hidden, of_matrix, hidden, matrix, targets = kept
    of_loss, of_losses = changes
    scale = jnp.zeros(()) if isinstance(of_loss, SymbolicZero) else of_loss
    of_hidden, of_matrix = (scale * of_hidden).astype(hidden.dtype), scale * of_matrix
    if not isinstance(of_losses, SymbolicZero):
        # Somebody derives values for the log: compute the logits again.
        more = _with_gradients(hidden, matrix, targets, of_losses, 0, chunks)[2:]
        of_hidden, of_matrix = of_hidden + more[0], of_matrix + more[1]
    return of_hidden, of_matrix.astype(matrix.dtype), None, None


_loss = jax.custom_vjp(_loss_alone, nondiff_argnums=(4, 5))
_loss.defvjp(_loss_forward, _loss_backward, symbolic_zeros=True)


def _with_gradients(
    hidden: jax.Array,
    matrix: jax.Array,
    targets: jax.Array,
    shares: jax.Array,
    z_loss: float,
    chunks: Chunks,
) -> tuple[jax.Array, ...]:
    """Return cross-entropy and log-denominator of each target, shape (B, T).

    Also return the gradients of the loss: of the hidden states, and, in float32, of the
    matrix.
    """

    def of_part(
        of_matrix: jax.Array, part: tuple[jax.Array, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        hidden, targets, shares = part
        logits, losses, log_sums = _of_logits(hidden, matrix, targets)
        probabilities = jnp.exp(logits - log_sums[..., None])
        is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
        change = probabilities * (shares * (1 + 2 * z_loss * log_sums))[..., None]
        change -= jnp.where(is_target, shares[..., None], 0)
        # A product of a float32 and a bfloat16 array would run in float32, at half the
        # rate of a GPU's bfloat16 products or less.
        change = change.astype(hidden.dtype)
        # Each device adds up its own part: the devices sum them once, at the end.
        of_matrix += jnp.einsum(
            "rpbtv,rpbtc->rpvc",
            *map(columns.by_device, (change, hidden)),
            preferred_element_type=jnp.float32,
        )
        return columns.on_device(of_matrix), (losses, log_sums, change @ matrix)

    columns = chunks.columns
    shape = (columns.row_parts, columns.parts, *matrix.shape)
    zeros = columns.on_device(jnp.zeros(shape, jnp.float32))
    of_matrix, parts = jax.lax.scan(
        of_part, zeros, chunks.cut((hidden, targets, shares))
    )
    return *chunks.joined(parts, targets.shape[1]), of_matrix.sum(axis=(0, 1))


def _of_logits(
    hidden: jax.Array, matrix: jax.Array, targets: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    logits = logits_of(hidden, matrix)
    log_sums = log_sum_exp(logits)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return logits, log_sums - chosen, log_sums


def log_sum_exp(logits: jax.Array) -> jax.Array:
    """Return the logarithm of the sum of exponentials over the last axis.

    One pass finds maximum and sum together, while `jax.nn.logsumexp` makes two. This
    matters because the logits are the largest array of a step.
    """

    def joined(
        one: tuple[jax.Array, jax.Array], other: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        (peak, total), (other_peak, other_total) = one, other
        shrink = jnp.exp(-jnp.abs(peak - other_peak))
        grown = jnp.where(
            peak >= other_peak,
            total + other_total * shrink,
            other_total + total * shrink,
        )
        return jnp.maximum(peak, other_peak), grown

    # Finite, because the difference of two infinities is no number.
    least = jnp.finfo(jnp.float32).min / 2
    peak, total = jax.lax.reduce(
        (logits, jnp.ones_like(logits)),
        (least, jnp.float32(0)),
        joined,
        (logits.ndim - 1,),
    )
    return peak + jnp.log(total)


def _total(
    losses: jax.Array, log_sums: jax.Array, shares: jax.Array, z_loss: float
) -> jax.Array:
    return (shares * (losses + z_loss * log_sums**2)).sum()


class Chunks(NamedTuple):
    """How the columns of a batch are cut into chunks.

    Attributes:
        number: Chunks.
        columns: The devices that hold a row. Every chunk has columns of each device, so
            that all have the same work.
    """

    number: int
    columns: Columns

    @classmethod
    def of(cls, size: int | None, columns: Columns, length: int) -> Chunks:
        """Return how `length` columns are cut into chunks of at most `size` columns.

        None means as many as give a device the logits of `_CHUNK_TOKENS` tokens.
        """
        own = length // columns.parts
        if size is None:
            most = max(1, _CHUNK_TOKENS // columns.own_rows)
        else:
            most = -(-size // columns.parts)
        return cls(max(1, -(-own // most)), columns)

    def cut(self, arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        """Cut arrays (B, T, ...) into shape (chunks, B, columns of a chunk, ...).

        Rows stay whole, so devices keep their rows. Columns that are added are zero.
        """
        if self.number == 1:
            return tuple(x[None] for x in arrays)
        number, parts = self.number, self.columns.parts

        def cut(x: jax.Array) -> jax.Array:
            own = x.shape[1] // parts
            size = -(-own // number)
            x = x.reshape(x.shape[0], parts, own, *x.shape[2:])
            missing = (0, number * size - own)
            x = jnp.pad(x, [(0, 0), (0, 0), missing] + [(0, 0)] * (x.ndim - 3))
            x = x.reshape(*x.shape[:2], number, size, *x.shape[3:])
            x = jnp.moveaxis(x, 2, 0)
            return x.reshape(*x.shape[:2], parts * size, *x.shape[4:])

        return tuple(map(cut, arrays))

    def joined(
        self, arrays: tuple[jax.Array, ...], length: int
    ) -> tuple[jax.Array, ...]:
        """Join chunks again, without the columns that `cut` added."""
        if self.number == 1:
            return tuple(x[0] for x in arrays)
        parts = self.columns.parts

        def joined(x: jax.Array) -> jax.Array:
            x = x.reshape(*x.shape[:2], parts, -1, *x.shape[3:])
            x = jnp.moveaxis(x, 0, 2)
            x = x.reshape(*x.shape[:2], -1, *x.shape[4:])[:, :, : length // parts]
            return x.reshape(x.shape[0], length, *x.shape[3:])

        return tuple(map(joined, arrays))
