"""The held-out loss: how well a model foresees files it has never been trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from flax import nnx

if TYPE_CHECKING:
    from roxxel_curriculum import TokenReader

NUM_WINDOWS = 32
"""Windows that the loss is taken over, spread evenly over the held-out files."""

AT_ONCE = 4
"""Windows that are evaluated together."""


def next_byte_loss(model: Any, batch: jax.Array) -> jax.Array:
    """Return the mean cross entropy of every next token, in nats.

    Args:
        model: Tokens, shape (B, T - 1), to logits, shape (B, T - 1, vocab_size).
        batch: Token ids, int32, shape (B, T).

    Returns:
        A float32 scalar.
    """
    logits = model(batch[:, :-1])
    targets = batch[:, 1:]
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


class HeldOut:
    """Evaluates models on the same windows of a held-out corpus every time.

    Args:
        corpus: The held-out tokens.
        context: Tokens that the model sees in a window, fewer where the corpus is
            shorter.
    """

    def __init__(self, corpus: TokenReader, context: int) -> None:
        length = min(context + 1, corpus.num_tokens)
        starts = np.linspace(0, corpus.num_tokens - length, NUM_WINDOWS)
        windows = corpus.read(starts.astype(np.int64), length)
        self._batches = windows.astype(np.int32).reshape(-1, AT_ONCE, length)
        self._compiled: tuple[Any, Any] | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that are foreseen in all."""
        return self._batches[:, :, 1:].size

    def loss(self, model: nnx.Module) -> float:
        """Return the mean loss of a model in nats a byte; it is left unchanged."""
        graphdef, state = nnx.split(model)
        if self._compiled is None or self._compiled[0] != graphdef:

            @jax.jit
            def evaluate(state: nnx.State[Any, Any], batch: jax.Array) -> jax.Array:
                return next_byte_loss(nnx.merge(graphdef, state), batch)

            self._compiled = graphdef, evaluate
        evaluate = self._compiled[1]
        losses = [float(evaluate(state, batch)) for batch in self._batches]
        return sum(losses) / len(losses)
