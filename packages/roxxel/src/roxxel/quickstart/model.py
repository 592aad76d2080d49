"""The quickstart's model: a small decoder over bytes, in Flax NNX.

About a million parameters: token embedding, blocks of causal self-attention and a
gated feed-forward layer, each behind an RMSNorm (Zhang and Sennrich, 2019), rotary
positions (Su et al., 2021) and a linear read-out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from roxxel.quickstart.heldout import next_byte_loss
from roxxel.quickstart.settings import PEAK_RATE, VOCAB_SIZE, Schedule

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder."""

    width: int = 160
    """Numbers a token is represented by; divides by `num_heads`."""
    num_layers: int = 3
    num_heads: int = 2
    hidden: int = 416
    """Width inside the feed-forward layers."""
    vocab_size: int = VOCAB_SIZE


class Attention(nnx.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        width = config.width
        self.num_heads = config.num_heads
        self.qkv = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Mix each token with those before it; (B, T, width) to (B, T, width)."""
        batch_size, seq_len, width = x.shape
        heads = (batch_size, seq_len, self.num_heads, width // self.num_heads)
        query, key, value = jnp.split(self.qkv(x), 3, axis=-1)
        mixed = jax.nn.dot_product_attention(
            rotate(query.reshape(heads)),
            rotate(key.reshape(heads)),
            value.reshape(heads),
            is_causal=True,
        )
        return self.out(mixed.reshape(x.shape))


class FeedForward(nnx.Module):
    """Gated feed-forward layer (SwiGLU: Shazeer, 2020)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        width, hidden = config.width, config.hidden
        self.enter = nnx.Linear(width, 2 * hidden, use_bias=False, rngs=rngs)
        self.leave = nnx.Linear(hidden, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform each token alone; (B, T, width) to (B, T, width)."""
        gate, value = jnp.split(self.enter(x), 2, axis=-1)
        return self.leave(jax.nn.silu(gate) * value)


class Block(nnx.Module):
    """One layer: attention, then the feed-forward layer, each added to its input."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.feed_norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.feed = FeedForward(config, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the layer's output; (B, T, width) to (B, T, width)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class Decoder(nnx.Module):
    """A causal language model over bytes."""

    def __init__(self, config: DecoderConfig | None = None, *, rngs: nnx.Rngs) -> None:
        config = config or DecoderConfig()
        self.embed = nnx.Embed(config.vocab_size, config.width, rngs=rngs)
        self.blocks = nnx.List(
            [Block(config, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.norm = nnx.RMSNorm(config.width, rngs=rngs)
        self.read_out = nnx.Linear(
            config.width,
            config.vocab_size,
            use_bias=False,
            # Small, so that an untrained model holds every byte for as likely.
            kernel_init=nnx.initializers.normal(0.02),
            rngs=rngs,
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of the token after each one.

        Args:
            tokens: Token ids, int32, shape (B, T), any T.

        Returns:
            float32, shape (B, T, vocab_size); row t depends on tokens 0 to t alone.
        """
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.read_out(self.norm(x))


def rotate(x: jax.Array, base: float = 10_000.0) -> jax.Array:
    """Turn pairs of channels by angles that grow with the position.

    Args:
        x: Queries or keys, shape (B, T, heads, channels), channels even.
        base: The slowest pair turns by about `1 / base` a position.

    Returns:
        The same shape and dtype; products of two rows depend on their distance.
    """
    seq_len, channels = x.shape[1], x.shape[-1]
    speeds = base ** (-jnp.arange(0, channels, 2) / channels)
    angles = jnp.arange(seq_len)[:, None] * speeds
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    left, right = jnp.split(x, 2, axis=-1)
    turned = [left * cos - right * sin, right * cos + left * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def count_parameters(model: nnx.Module) -> int:
    """Return the number of trained numbers of a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def make_optimizer(schedule: Schedule) -> optax.GradientTransformation:
    """Return AdamW under a rate that rises, then falls to a tenth and stays there."""
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=PEAK_RATE,
        warmup_steps=schedule.warmup,
        decay_steps=schedule.horizon,
        end_value=PEAK_RATE / 10,
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1)
    )


def make(
    seed: int, horizon: int
) -> tuple[Decoder, nnx.Optimizer[Decoder], Callable[[Any, jax.Array], jax.Array]]:
    """Return model, optimizer and loss function, as a config file names them.

    Args:
        seed: Seed of the model.
        horizon: Step at which the learning rate has reached its end.
    """
    model = Decoder(rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(
        model, make_optimizer(Schedule.of(horizon)), wrt=nnx.Param
    )
    return model, optimizer, next_byte_loss
