"""Text from a model: one byte after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from roxxel.quickstart.settings import SEPARATOR

if TYPE_CHECKING:
    from roxxel.quickstart.model import Decoder


def sample_text(
    model: Decoder,
    prompt: str,
    *,
    num_bytes: int,
    temperature: float,
    seed: int,
) -> str:
    """Let a model go on with a text.

    Args:
        model: A decoder over bytes.
        prompt: Where to begin; at least one character.
        num_bytes: Bytes to add at most; a separator ends the text before.
        temperature: Divides the logits; above 0.
        seed: The same model, prompt and seed give the same text.

    Returns:
        The prompt and what follows. What is no printable text shows as U+FFFD, so the
        bytes of a young model cannot upset a terminal.
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
            # What lies behind `index` is not there yet, and causality hides it.
            logits = decoder(buffer)[0, index - 1] / temperature
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
