"""The decoder: tokens to hidden states, and hidden states to logits."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models._attention import Columns, Scope
from roxxel.models._layers import Layer, Matrix, RMSNorm, frequencies
from roxxel.recipe.llama_config import RopeScaling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel.recipe.llama_config import LlamaConfig

_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Stack(nnx.Module):
    """The token table, the layers and the last normalisation."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.embed_tokens = _table(config, rngs)
        layers = [Layer(config, rngs=rngs) for _ in range(config.num_layers)]
        self.layers = nnx.List(layers)
        self.norm = RMSNorm(config)


def made_by(function: str, args: Mapping[str, Any]) -> str | None:
    """Return a run's record of its model, from which `remade` makes the model again.

    None if an argument is an object that JSON cannot hold, such as a function.
    """
    try:
        return json.dumps({"function": function, "args": args}, default=_plain)
    except (AttributeError, TypeError):
        return None


def _plain(value: Any) -> Any:
    """Return an argument as a JSON value: a dataclass, or a scalar of NumPy."""
    return asdict(value) if isinstance(value, RopeScaling) else value.item()


class Llama(nnx.Module):
    """A causal language model of the Llama shape (Touvron et al., 2023).

    With `qk_norm` and `norm_placement`, the model is a Qwen-3 or an OLMo-2.

    Parameters are float32. Their paths and shapes are those of the Hugging Face class,
    such as `LlamaForCausalLM`: `model.layers.0.self_attn.q_proj.weight`.

    If `config` names axes of a mesh, create the model inside `jax.set_mesh(mesh)`. The
    trainer does so for a model that is given as a function.

    Args:
        config: Sizes and options.
        rngs: The stream `params` draws the initial weights.

    >>> import jax.numpy as jnp
    >>> from flax import nnx
    >>> from roxxel.models import LlamaConfig
    >>> config = LlamaConfig.tiny(width=8, hidden=8, num_layers=1)
    >>> Llama(config, rngs=nnx.Rngs(0))(jnp.zeros((1, 4), jnp.int32)).shape
    (1, 4, 257)
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        _check_axes(config)
        self.config = config
        self.made_by = made_by("Llama", asdict(config))
        self.model = Stack(config, rngs=rngs)
        if not config.tied:
            self.lm_head = _table(config, rngs)

    def __call__(
        self,
        tokens: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Return the logits of the next token at every position.

        Args:
            tokens: Token ids, integers, shape (B, T), T at most `config.context`.
            segment_ids: Document of each token, integers, shape (B, T). A token sees
                only earlier tokens of its own document. None means one document in each
                row.
            positions: Position of each token in its document, integers, shape (B, T).
                None means the position in the row, which gives the same logits up to
                rounding: rotary attention depends only on distances.

        Returns:
            float32, shape (B, T, vocab_size).
        """
        hidden = self.hidden(tokens, segment_ids, positions)
        return logits_of(hidden, self.output_matrix())

    def hidden(
        self,
        tokens: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Return the normalised output of the last layer, shape (B, T, width)."""
        config, stack = self.config, self.model
        length = tokens.shape[1]
        if length > config.context:
            raise ValueError(
                f"tokens have {length} columns, but the model's context is "
                f"{config.context}; raise context, or use shorter sequences"
            )
        if positions is None:
            positions = jnp.arange(length)[None]
        angles = positions[..., None].astype(jnp.float32) * frequencies(config)
        scope = Scope.of(Columns.of(config, *tokens.shape), segment_ids)
        # Rows are cast after the look-up, so their gradients add up in float32.
        x = stack.embed_tokens.weight[...][tokens].astype(config.dtype)
        apply: Any = Layer.__call__
        if config.remat != "none":
            apply = nnx.remat(apply, policy=_POLICIES[config.remat])
        for layer in stack.layers:
            x = apply(layer, x, angles, scope)
        return stack.norm(scope.columns.split(x))

    def output_matrix(self) -> jax.Array:
        """Return the matrix from hidden states to logits, shape (vocab_size, width)."""
        return (self.model.embed_tokens if self.config.tied else self.lm_head).cast()


def logits_of(hidden: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return float32 logits of hidden states; `matrix` is (vocab_size, width)."""
    return jnp.matmul(hidden, matrix.T, preferred_element_type=jnp.float32)


def _check_axes(config: LlamaConfig) -> None:
    names = jax.sharding.get_abstract_mesh().axis_names
    for option in ("tensor_axis", "fsdp_axis"):
        axis = getattr(config, option)
        if axis is not None and axis not in names:
            there = f"has the axes {', '.join(names)}" if names else "is not set"
            raise ValueError(
                f"{option}={axis!r} is not an axis of the mesh, which {there}; "
                f"give a mesh with this axis, or leave {option} out"
            )


def _table(config: LlamaConfig, rngs: nnx.Rngs) -> Matrix:
    axes = (config.tensor_axis, config.fsdp_axis)
    shape = (config.vocab_size, config.width)
    return Matrix(config, *shape, axes, std=config.init_std, rngs=rngs)
