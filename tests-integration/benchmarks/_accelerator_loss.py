"""A loss whose logits are bfloat16, to measure what float32 logits cost.

At 124 million parameters and 65 536 tokens, the logits take 13 GB in float32, and each
pass over them takes milliseconds. `roxxel.models` keeps them in float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def loss_of_narrow_logits(model: Any, batch: jax.Array) -> tuple[jax.Array, Any]:
    """Return the mean cross-entropy of the next token, and no further values."""
    hidden = model.hidden(batch[:, :-1])
    logits = hidden @ model.output_matrix().T
    return _cross_entropy(logits, batch[:, 1:]).mean(), {}


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    return _forward(logits, targets)[0]


def _forward(
    logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    log_sum = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_sum - chosen.astype(jnp.float32), (logits, targets, log_sum)


def _backward(
    kept: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    logits, targets, log_sum = kept
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_sum[..., None])
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    change = (probabilities - is_target) * gradient[..., None]
    return change.astype(logits.dtype), None


_cross_entropy.defvjp(_forward, _backward)
