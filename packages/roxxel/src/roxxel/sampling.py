"""Continues texts with a model: `roxxel sample`, and the quickstart's last words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

if TYPE_CHECKING:
    import numpy.typing as npt


def sample_tokens(
    model: nnx.Module,
    prompt: npt.ArrayLike,
    num_tokens: int,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop: int | None = None,
) -> npt.NDArray[np.int32]:
    """Continue a sequence of tokens with a causal model.

    The whole sequence passes through the model for every new token: good for looking
    at a run, too slow for serving. To serve a model, export it.

    Args:
        model: A model from tokens, integers, shape (1, T), to logits, shape (1, T,
            vocabulary), such as `roxxel.models.Llama`.
        prompt: The first tokens, integers, shape (N,), at least one.
        num_tokens: Maximum number of tokens to add. Prompt and added tokens must fit
            the context of the model.
        seed: Of the draws. The same model, prompt and seed give the same tokens.
        temperature: Divisor of the logits; less than 1 favours the likeliest tokens, 0
            always takes the likeliest.
        top_k: Draw only from the `top_k` likeliest tokens; None draws from all.
        stop: A token that ends the sequence and is left out, such as the separator
            between documents.

    Returns:
        The added tokens, shape (at most `num_tokens`,).

    Raises:
        ValueError: A number is out of range, or the prompt is empty.

    >>> model = nnx.Sequential(nnx.Embed(9, 9, rngs=nnx.Rngs(0)))
    >>> sample_tokens(model, [1, 2], 3).shape
    (3,)
    """
    start = np.asarray(prompt, np.int32)
    if start.ndim != 1 or not start.size:
        raise ValueError(
            f"prompt must be a sequence of at least one token, got shape {start.shape}"
        )
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be 1 or more, got {num_tokens}")
    if not 0 <= temperature < float("inf"):
        raise ValueError(f"temperature must be 0 or more, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be 1 or more, got {top_k}")
    buffer = np.zeros((1, start.size + num_tokens), np.int32)
    buffer[0, : start.size] = start
    graphdef, state = nnx.split(model)

    @jax.jit
    def generate(
        state: nnx.State[Any, Any], buffer: jax.Array, key: jax.Array
    ) -> jax.Array:
        decoder: Any = nnx.merge(graphdef, state)

        def add_one(index: jax.Array, buffer: jax.Array) -> jax.Array:
            # The causal mask hides the tokens that the loop has not drawn yet.
            logits = decoder(buffer)[0, index - 1]
            if top_k is not None and top_k < logits.size:
                least = jax.lax.top_k(logits, top_k)[0][-1]
                logits = jnp.where(logits < least, -jnp.inf, logits)
            if temperature == 0:
                drawn = logits.argmax()
            else:
                draw = jax.random.fold_in(key, index)
                drawn = jax.random.categorical(draw, logits / temperature)
            return buffer.at[0, index].set(drawn)

        return jax.lax.fori_loop(start.size, buffer.shape[1], add_one, buffer)

    tokens = generate(state, jnp.asarray(buffer), jax.random.key(seed))
    added = np.asarray(tokens)[0, start.size :]
    (ends,) = np.nonzero(added == stop) if stop is not None else ([],)
    return added[: ends[0]] if len(ends) else added


def readable(content: bytes) -> str:
    r"""Return UTF-8 text that cannot upset a terminal.

    An undertrained model may write control characters and broken UTF-8; each becomes
    U+FFFD. Line ends and tabs stay.

    >>> readable(b"a\x1b[2J")
    'a\ufffd[2J'
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for c in content.decode("utf-8", errors="replace")
    )
