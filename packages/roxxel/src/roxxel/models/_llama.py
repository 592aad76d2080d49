"""The decoder: tokens through its layers to hidden states, and these to logits."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from roxxel.models._attention import Columns, Scope
from roxxel.recipe.llama_config import RopeScaling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roxxel.recipe.llama_config import LlamaConfig

_POLICIES = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


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


class Stack(nnx.Module):
    """The token table, the layers and the last normalisation."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.embed_tokens = _table(config, rngs)
        layers = [Layer(config, rngs=rngs) for _ in range(config.num_layers)]
        self.layers = nnx.List(layers)
        self.norm = RMSNorm(config)


class Layer(nnx.Module):
    """Attention and a feed-forward layer, each with a norm and a residual path."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.is_post_norm = config.norm_placement == "post"
        if not self.is_post_norm:
            self.input_layernorm = RMSNorm(config)
        self.self_attn = Attention(config, rngs=rngs)
        self.post_attention_layernorm = RMSNorm(config)
        self.mlp = FeedForward(config, rngs=rngs)
        if self.is_post_norm:
            self.post_feedforward_layernorm = RMSNorm(config)

    def __call__(self, x: jax.Array, angles: jax.Array, scope: Scope) -> jax.Array:
        """Return the layer's output; arguments as for `Attention`."""
        x = scope.columns.split(x)
        if self.is_post_norm:
            mixed = self.self_attn(x, angles, scope)
            x = x + self.post_attention_layernorm(mixed)
            return x + self.post_feedforward_layernorm(self.mlp(x))
        x = x + self.self_attn(self.input_layernorm(x), angles, scope)
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nnx.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        split, rest = config.tensor_axis, config.fsdp_axis
        width, std = config.width, config.init_std
        heads = config.num_heads * config.channels
        kv_heads = config.num_kv_heads * config.channels
        across = (split, rest)
        self.q_proj = Matrix(config, heads, width, across, std=std, rngs=rngs)
        self.k_proj = Matrix(config, kv_heads, width, across, std=std, rngs=rngs)
        self.v_proj = Matrix(config, kv_heads, width, across, std=std, rngs=rngs)
        if config.qk_norm != "none":
            of_query, of_key = config.qk_norm_sizes
            self.q_norm = RMSNorm(config, of_query)
            self.k_norm = RMSNorm(config, of_key)
        std = _residual_std(config)
        self.o_proj = Matrix(config, width, heads, (rest, split), std=std, rngs=rngs)

    def __call__(self, x: jax.Array, angles: jax.Array, scope: Scope) -> jax.Array:
        """Mix each token with earlier tokens of its document.

        Args:
            x: Shape (B, T, width).
            angles: Rotary angles, float32, shape (B or 1, T, channels / 2).
            scope: Which tokens a token sees.
        """
        config = self.config
        heads = (*x.shape[:2], -1, config.channels)
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if config.qk_norm == "whole":
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = query.reshape(heads), key.reshape(heads)
        if config.qk_norm == "head":
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, angles), rotate(key, angles)
        mixed = scope.attend(query, key, value.reshape(heads), config.attention)
        return self.o_proj(mixed.reshape(*x.shape[:2], -1))


class FeedForward(nnx.Module):
    """Gated feed-forward layer (SwiGLU: Shazeer, GLU Variants, 2020)."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs) -> None:
        split, rest = config.tensor_axis, config.fsdp_axis
        width, hidden, std = config.width, config.hidden, config.init_std
        across = (split, rest)
        self.gate_proj = Matrix(config, hidden, width, across, std=std, rngs=rngs)
        self.up_proj = Matrix(config, hidden, width, across, std=std, rngs=rngs)
        std = _residual_std(config)
        self.down_proj = Matrix(
            config, width, hidden, (rest, split), std=std, rngs=rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform each token alone; (B, T, width) to (B, T, width)."""
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class RMSNorm(nnx.Module):
    """Root mean square normalisation, in float32 (Zhang and Sennrich, 2019)."""

    def __init__(self, config: LlamaConfig, size: int | None = None) -> None:
        self.epsilon = config.norm_epsilon
        self.weight = nnx.Param(jnp.ones(size or config.width, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the normalised array in the dtype of `x`."""
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.epsilon)
        return (wide * scale * self.weight[...]).astype(x.dtype)


class Matrix(nnx.Module):
    """A float32 matrix of shape (outputs, inputs).

    A layer calls the matrix to multiply; the embedding looks up its rows.

    Args:
        config: The model's config, which has the dtype of products.
        outputs: Rows.
        inputs: Columns.
        axes: Axes of the mesh that split the rows and the columns.
        std: Standard deviation of the initial values.
        rngs: The stream `params` draws the initial values.
    """

    def __init__(
        self,
        config: LlamaConfig,
        outputs: int,
        inputs: int,
        axes: tuple[str | None, str | None],
        *,
        std: float,
        rngs: nnx.Rngs,
    ) -> None:
        self.dtype = jnp.dtype(config.dtype)
        initial = nnx.initializers.normal(std)
        if any(axes):
            initial = nnx.with_partitioning(initial, axes)
        self.weight = nnx.Param(initial(rngs.params(), (outputs, inputs), jnp.float32))

    def cast(self) -> jax.Array:
        """Return the matrix in the dtype of the products."""
        return self.weight[...].astype(self.dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiply the last axis; (..., inputs) to (..., outputs)."""
        return x @ self.cast().T


def logits_of(hidden: jax.Array, matrix: jax.Array) -> jax.Array:
    """Return float32 logits of hidden states; `matrix` is (vocab_size, width)."""
    return jnp.matmul(hidden, matrix.T, preferred_element_type=jnp.float32)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate pairs of channels; channel c pairs with channel c + channels / 2.

    Args:
        x: Queries or keys, shape (B, T, heads, channels).
        angles: Radians, float32, shape (B or 1, T, channels / 2).

    Returns:
        An array of the shape and dtype of `x`. The dot product of a rotated query and a
        rotated key depends only on the distance of their positions.
    """
    cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [left * cos - right * sin, right * cos + left * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def frequencies(config: LlamaConfig) -> jax.Array:
    """Return the radians per position of each pair of channels, float32."""
    exponents = jnp.arange(0, config.channels, 2, dtype=jnp.float32) / config.channels
    speeds = config.rope_theta**-exponents
    return _stretched(speeds, config.rope_scaling) if config.rope_scaling else speeds


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


def _stretched(speeds: jax.Array, scaling: RopeScaling) -> jax.Array:
    if scaling.kind == "linear":
        return speeds / scaling.factor
    # `turns` are the turns of a pair of channels within the original context.
    turns = speeds * scaling.original_context / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    return speeds * (kept + (1 - kept) / scaling.factor)


def _residual_std(config: LlamaConfig) -> float:
    """Return the initial deviation of matrices that add to the residual stream."""
    return config.init_std / math.sqrt(2 * config.num_layers)
