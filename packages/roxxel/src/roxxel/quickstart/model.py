"""The quickstart's model: a small decoder over bytes, in Flax NNX.

The model has about a million parameters: a token embedding, blocks, and a linear
read-out. A block has causal self-attention with rotary positions (Su et al., 2021) and
a gated feed-forward layer, each after an RMSNorm (Zhang and Sennrich, 2019). The
quickstart's config names the function `make`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from roxxel.quickstart.corpus import SEPARATOR, VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

_PEAK_RATE = 4e-3
"""Highest learning rate; the final rate is a tenth of this."""

_TEMPERATURE = 0.7
"""Divisor of the logits of a text sample; lower values favour the likeliest bytes."""


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder."""

    width: int = 160
    """Channels of each token; a multiple of `num_heads`."""
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
        """Mix each token with earlier tokens; (B, T, width) to (B, T, width)."""
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
    """A causal language model over bytes.

    >>> small = DecoderConfig(width=8, num_layers=1, num_heads=1, hidden=8)
    >>> Decoder(small, rngs=nnx.Rngs(0))(jnp.zeros((1, 4), jnp.int32)).shape
    (1, 4, 257)
    """

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
            # With small weights, an untrained model predicts all bytes about equally.
            kernel_init=nnx.initializers.normal(0.02),
            rngs=rngs,
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of the next token at every position.

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
    """Rotate pairs of channels by angles that grow with the position.

    Args:
        x: Queries or keys, shape (B, T, heads, channels), channels even.
        base: The slowest pair rotates by about `1 / base` radians per position.

    Returns:
        An array of the same shape and dtype. The dot product of a rotated query and a
        rotated key depends on their positions only through the distance between them.
    """
    seq_len, channels = x.shape[1], x.shape[-1]
    speeds = base ** (-jnp.arange(0, channels, 2) / channels)
    angles = jnp.arange(seq_len)[:, None] * speeds
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    left, right = jnp.split(x, 2, axis=-1)
    turned = [left * cos - right * sin, right * cos + left * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def count_parameters(model: nnx.Module) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


def next_byte_loss(
    model: Any, batch: jax.Array | Mapping[str, jax.Array]
) -> jax.Array | dict[str, jax.Array]:
    """Return the mean cross entropy of every next token, in nats.

    Args:
        model: Tokens, shape (B, T - 1), to logits, shape (B, T - 1, vocab_size).
        batch: Token ids, int32, shape (B, T), or a mapping with the field `tokens` and
            possibly `loss_mask`, of the same shape. The mean leaves out tokens whose
            `loss_mask` is 0. Other fields are ignored.

    Returns:
        A float32 scalar; for a mapping, `loss` and as `loss_weight` the number of
        tokens in the mean.
    """
    fields = batch if isinstance(batch, Mapping) else {"tokens": batch}
    tokens = fields["tokens"]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    if not isinstance(batch, Mapping):
        return losses.mean()
    mask = fields.get("loss_mask", jnp.ones_like(tokens))[:, 1:]
    weight = mask.sum().astype(jnp.float32)
    return {
        "loss": (losses * mask).sum() / jnp.maximum(weight, 1),
        "loss_weight": weight,
    }


def make_optimizer(horizon: int) -> optax.GradientTransformation:
    """Return AdamW. The learning rate rises, falls to a tenth of its peak, then stays.

    Args:
        horizon: Step at which the learning rate reaches its final value.
    """
    rate = optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=_PEAK_RATE,
        warmup_steps=max(1, horizon // 12),
        decay_steps=horizon,
        end_value=_PEAK_RATE / 10,
    )
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1)
    )


def make(
    seed: int, horizon: int
) -> tuple[Decoder, nnx.Optimizer[Decoder], Callable[..., Any]]:
    """Return model, optimizer and loss function.

    Args:
        seed: Seed of the model.
        horizon: Step at which the learning rate reaches its final value.
    """
    model = Decoder(rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, make_optimizer(horizon), wrt=nnx.Param)
    return model, optimizer, next_byte_loss


def sample_text(
    model: Decoder,
    prompt: str,
    *,
    num_bytes: int,
    seed: int,
) -> str:
    """Continue a text with a model.

    Args:
        model: A decoder over bytes.
        prompt: Start of the text; at least one character.
        num_bytes: Maximum number of bytes to add; a separator ends the text earlier.
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
