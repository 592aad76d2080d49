"""The logits of a model in evaluation mode: for sampling and for scoring."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from flax import nnx

if TYPE_CHECKING:
    import jax


class Forward:
    """A model in evaluation mode, from tokens to logits, inside a compiled program.

    Pass `arrays` to the program, and call this object in it: `forward(arrays, tokens)`.
    Every call makes its own model. Flax lets a model advance its random streams only in
    the trace in which it was made, and a loop's body is a trace of its own. Changes to
    the model are discarded: the same tokens give the same logits.

    Args:
        model: The model; it stays as it is.

    Attributes:
        context: Maximum number of tokens that the model takes, if its config says so.
    """

    def __init__(self, model: nnx.Module) -> None:
        self._graphdef, state = nnx.split(model)
        self.arrays: Any = nnx.to_pure_dict(state)
        context = getattr(getattr(model, "config", None), "context", None)
        self.context: int | None = context if isinstance(context, int) else None

    def __call__(self, arrays: Any, tokens: jax.Array) -> jax.Array:
        """Return the logits of tokens, shape (B, T), as (B, T, vocabulary).

        Raises:
            ValueError: The model needs other arguments, or returns something else.
        """
        model: Any = nnx.merge(self._graphdef, arrays)
        model.eval()
        name = type(model).__name__
        try:
            inspect.signature(model).bind(tokens)
        except TypeError as error:
            raise ValueError(
                f"{name} cannot be called with tokens alone ({error}); "
                "give the other arguments of its __call__ a default"
            ) from error
        logits = model(tokens)
        shape = getattr(logits, "shape", None)
        if shape is None or len(shape) != 3 or shape[:2] != tokens.shape:
            got = type(logits).__name__ if shape is None else f"shape {shape}"
            raise ValueError(
                f"{name} returns {got} for tokens of shape {tokens.shape}; let its "
                "__call__ return logits of shape (B, T, vocabulary) alone"
            )
        return logits
