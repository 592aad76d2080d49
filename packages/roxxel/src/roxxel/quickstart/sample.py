"""Texts that the quickstart's model writes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel.quickstart.corpus import SEPARATOR

_TEMPERATURE = 0.7
"""Divisor of the logits of a text sample; lower values favour the likeliest bytes."""


def sample_text(
    model: nnx.Module,
    prompt: str,
    *,
    num_bytes: int,
    seed: int,
) -> str:
    """Continue a text with a model.

    Args:
        model: A causal model from tokens, shape (1, T), to logits, such as `Llama`. The
            tokens are bytes and `SEPARATOR`.
        prompt: Start of the text; at least one character.
        num_bytes: Maximum number of bytes to add; a separator ends the text earlier.
            Prompt and added bytes must fit the context of the model.
        seed: The same model, prompt and seed give the same text.

    Returns:
        The prompt and its continuation. Unprintable characters become U+FFFD, because
        an undertrained model may write control characters.
    """
    start = np.frombuffer(prompt.encode(), np.uint8)
    buffer = np.zeros((1, len(start) + num_bytes), np.int32)
    buffer[0, : len(start)] = start
    graphdef, state = nnx.split(model)

    @jax.jit
    def generate(
        state: nnx.State[Any, Any], buffer: jax.Array, key: jax.Array
    ) -> jax.Array:
        decoder = nnx.merge(graphdef, state)

        def add_one(index: jax.Array, buffer: jax.Array) -> jax.Array:
            # The causal mask hides the bytes that the loop has not drawn yet.
            logits = decoder(buffer)[0, index - 1] / _TEMPERATURE
            drawn = jax.random.categorical(jax.random.fold_in(key, index), logits)
            return buffer.at[0, index].set(drawn)

        return jax.lax.fori_loop(len(start), buffer.shape[1], add_one, buffer)

    tokens = generate(state, jnp.asarray(buffer), jax.random.key(seed))
    return decode(np.asarray(tokens)[0, len(start) :], prompt)


def decode(tokens: np.ndarray, prompt: str = "") -> str:
    """Return the text of tokens up to the first separator, safe for a terminal."""
    (ends,) = np.nonzero(tokens == SEPARATOR)
    content = tokens[: ends[0]] if len(ends) else tokens
    text = content.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
    return prompt + "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )
