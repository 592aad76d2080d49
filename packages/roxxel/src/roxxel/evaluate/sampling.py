"""Continue texts with a model, for `roxxel sample`, `roxxel eval` and quickstart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from roxxel_store.arguments import as_integer

from roxxel.evaluate._forward import Forward

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    from flax import nnx


def sample_tokens(
    model: nnx.Module,
    prompt: npt.ArrayLike,
    num_tokens: int,
    *,
    seed: int = 0,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop: int | Iterable[int] = (),
    context: int | None = None,
) -> npt.NDArray[np.int32]:
    """Continue a sequence of tokens with a causal model, in evaluation mode.

    The whole sequence passes through the model for every new token. This is fast enough
    to look at a run, but too slow to serve a model. To serve the model, export it.

    Args:
        model: A model from tokens, integers, shape (1, T), to logits, shape (1, T,
            vocabulary), such as `roxxel.models.Llama`.
        prompt: The first tokens, integers, shape (N,), at least one.
        num_tokens: Maximum number of tokens to add.
        seed: Seed of the draws, an integer of 64 bits. The same model, prompt and seed
            give the same tokens.
        temperature: Divisor of the logits; less than 1 favours the likeliest tokens, 0
            always takes the likeliest.
        top_k: Draw only from the `top_k` likeliest tokens; None draws from all.
        stop: A token, or several, such as the separator between documents. Any of them
            ends the sequence, and is left out.
        context: Maximum number of tokens that the model takes: each new token follows
            from the newest ones. None means `model.config.context`, or no limit without
            it.

    Returns:
        The added tokens, shape (at most `num_tokens`,).

    Raises:
        ValueError: A number is out of range, the prompt is empty, or the model cannot
            be called with tokens alone or returns no logits.

    >>> from flax import nnx
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
    continuation = Continuation(
        model, temperature=temperature, top_k=top_k, seed=seed, context=context
    )
    rows = np.zeros((1, start.size + num_tokens), np.int32)
    rows[0, : start.size] = start
    added = continuation.added(rows, [start.size], num_tokens)[0]
    stops = [stop] if isinstance(stop, int) else [*stop]
    (ends,) = np.nonzero(np.isin(added, stops))
    return added[: ends[0]] if len(ends) else added


class Continuation:
    """Adds tokens to rows; rows of the same shape use one compiled program.

    Args:
        model: A model from tokens, integers, shape (B, T), to logits, shape (B, T,
            vocabulary).
        temperature: As for `sample_tokens`.
        top_k: As for `sample_tokens`.
        seed: As for `sample_tokens`.
        context: As for `sample_tokens`.

    Raises:
        ValueError: A number is out of range.

    >>> from flax import nnx
    >>> model = nnx.Sequential(nnx.Embed(9, 9, rngs=nnx.Rngs(0)))
    >>> rows = np.zeros((2, 8), np.int32)
    >>> Continuation(model, temperature=0).added(rows, [3, 1], 4).shape
    (2, 4)
    """

    def __init__(
        self,
        model: nnx.Module,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        context: int | None = None,
    ) -> None:
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {temperature}")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be 1 or more, got {top_k}")
        if context is not None and context < 1:
            raise ValueError(f"context must be 1 or more, got {context}")
        forward = Forward(model)
        self._arrays = forward.arrays
        self._key = _key_of(seed)
        most = context or forward.context

        def one_drawn(logits: jax.Array, key: jax.Array) -> jax.Array:
            if top_k is not None and top_k < logits.size:
                least = jax.lax.top_k(logits, top_k)[0][-1]
                logits = jnp.where(logits < least, -jnp.inf, logits)
            if temperature == 0:
                return logits.argmax()
            return jax.random.categorical(key, logits / temperature)

        @jax.jit
        def extended(
            arrays: Any,
            rows: jax.Array,
            starts: jax.Array,
            num_tokens: jax.Array,
            key: jax.Array,
        ) -> jax.Array:
            row = jnp.arange(len(rows))
            width = min(most or rows.shape[1], rows.shape[1])

            def newest(row: jax.Array, begin: jax.Array) -> jax.Array:
                return jax.lax.dynamic_slice(row, (begin,), (width,))

            def add_one(index: jax.Array, rows: jax.Array) -> jax.Array:
                # The causal mask hides the tokens that the loop has not drawn yet.
                at = starts + index
                keys = jax.vmap(jax.random.fold_in, (None, 0))(key, at)
                begins = jnp.maximum(at - width, 0)
                window = jax.vmap(newest)(rows, begins)
                logits = forward(arrays, window)[row, at - 1 - begins]
                drawn = jax.vmap(one_drawn)(logits, keys)
                return rows.at[row, at].set(drawn)

            return jax.lax.fori_loop(0, num_tokens, add_one, rows)

        self._extended = extended

    def added(
        self, rows: npt.NDArray[np.int32], starts: Sequence[int], num_tokens: int
    ) -> npt.NDArray[np.int32]:
        """Return the tokens that continue each row, shape (B, num_tokens).

        Args:
            rows: The tokens so far, each row padded at its end, shape (B, T).
            starts: Number of tokens of each row, at least 1; `num_tokens` more must fit
                into the row.
            num_tokens: Number of tokens to add to each row.
        """
        first = np.asarray(starts, np.int32)
        whole = np.asarray(
            self._extended(self._arrays, rows, first, num_tokens, self._key)
        )
        return np.stack(
            [
                row[start : start + num_tokens]
                for row, start in zip(whole, starts, strict=True)
            ]
        )


def _key_of(seed: int) -> jax.Array:
    if not -(2**63) <= as_integer("seed", seed) < 2**63:
        raise ValueError(f"seed must fit 64 bits, got {seed}")
    return jax.random.key(seed)
