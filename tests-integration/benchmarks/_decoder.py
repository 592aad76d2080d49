"""The decoders of the pre-training benchmark: GPT-2 and GPT-3 shapes in Flax NNX.

Parameters and AdamW are float32. Activations and the inputs of matrix products are
bfloat16; XLA accumulates the products in float32. On CUDA, attention is cuDNN's fused
kernel. The backward pass computes no matrix product again: by estimate, the activations
of every size here fit into the memory of an H200. It does compute normalisations and
GELU again, because their float32 intermediates would take as much memory as all other
activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

COMPUTE = jnp.bfloat16


@dataclass(frozen=True)
class Size:
    """A decoder and the batch that it is trained on.

    Attributes:
        layers: Transformer blocks.
        width: Numbers per token between blocks.
        heads: Attention heads.
        vocabulary: Rows of the token table, which is also the output matrix.
        context: Tokens that a sequence predicts.
        batch_size: Sequences of a batch.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    batch_size: int


SIZES = {
    "tiny": Size(1, 32, 2, 256, 32, 8),
    "124m": Size(12, 768, 12, 50304, 1024, 64),
    "350m": Size(24, 1024, 16, 50304, 1024, 32),
    "1.3b": Size(24, 2048, 16, 50304, 2048, 16),
}


def _product(x: jax.Array, weight: nnx.Param[jax.Array]) -> jax.Array:
    return x @ weight[...].astype(COMPUTE)


class Norm(nnx.Module):
    """Layer normalisation with a scale and without a bias, computed in float32."""

    def __init__(self, width: int) -> None:
        self.scale = nnx.Param(jnp.ones(width))

    def __call__(self, x: jax.Array) -> jax.Array:
        return _normalise(x, self.scale[...])


@jax.checkpoint
def _normalise(x: jax.Array, scale: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    x -= x.mean(-1, keepdims=True)
    x *= jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return (x * scale).astype(COMPUTE)


@jax.checkpoint
def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x)


class Initial:
    """Makes initial weights: uniform, with the standard deviation of GPT-2's.

    XLA's own generator and a uniform distribution compile several times faster than
    JAX's default generator and a normal one, and nothing here depends on the values.
    """

    def __init__(self) -> None:
        self._key = jax.random.key(0, impl="unsafe_rbg")
        self._num_made = 0

    def __call__(
        self, rows: int, columns: int, deviation: float = 0.02
    ) -> nnx.Param[jax.Array]:
        """Return a matrix; the next call returns another one."""
        self._num_made += 1
        key = jax.random.fold_in(self._key, self._num_made)
        most = deviation * 3**0.5
        shape = rows, columns
        return nnx.Param(jax.random.uniform(key, shape, minval=-most, maxval=most))


class Block(nnx.Module):
    """Causal attention and a two-layer perceptron, each after a normalisation."""

    def __init__(self, size: Size, initial: Initial) -> None:
        width, out = size.width, 0.02 / (2 * size.layers) ** 0.5
        self.heads = size.heads
        self.before_attention = Norm(width)
        self.qkv = initial(width, 3 * width)
        self.attention_out = initial(width, width, out)
        self.before_mlp = Norm(width)
        self.mlp_in = initial(width, 4 * width)
        self.mlp_out = initial(4 * width, width, out)

    def __call__(self, x: jax.Array) -> jax.Array:
        rows, length, width = x.shape
        qkv = _product(self.before_attention(x), self.qkv)
        qkv = qkv.reshape(rows, length, 3, self.heads, width // self.heads)
        query, key, value = (qkv[:, :, index] for index in range(3))
        mixed = jax.nn.dot_product_attention(
            query, key, value, is_causal=True, implementation=_attention()
        )
        x += _product(mixed.reshape(x.shape), self.attention_out)
        hidden = _gelu(_product(self.before_mlp(x), self.mlp_in))
        return x + _product(hidden, self.mlp_out)


class Decoder(nnx.Module):
    """A decoder whose token table is also its output matrix.

    Args:
        size: Shape of the decoder.
        longest: Longest context that it is applied to.
        ballast_bytes: Bytes of further parameters: tables of which every token adds one
            row to its embedding. They make the state large and the step no slower
            than memory allows.
    """

    def __init__(self, size: Size, longest: int, ballast_bytes: int = 0) -> None:
        initial = Initial()
        self.tokens = initial(size.vocabulary, size.width)
        self.positions = initial(longest, size.width)
        self.blocks = nnx.List([Block(size, initial) for _ in range(size.layers)])
        self.last = Norm(size.width)
        # Equal numbers: a checkpoint compresses them, so that it fits a small disk.
        self.ballast = nnx.List(
            [
                nnx.Param(jnp.full((rows, size.width), 1e-3))
                for rows in _ballast_rows(ballast_bytes, size)
            ]
        )

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the logits of the next tokens, in bfloat16."""
        # Rows are cast after the look-up, so their gradients add up in float32.
        x = self.tokens[...][tokens].astype(COMPUTE)
        x += self.positions[...][: tokens.shape[1]].astype(COMPUTE)
        for table in self.ballast:
            x += table[...][tokens].astype(COMPUTE)
        for block in self.blocks:
            x = block(x)
        return self.last(x) @ self.tokens[...].astype(COMPUTE).T


def loss_fn(model: Decoder, batch: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of the next token."""
    return cross_entropy(model(batch[:, :-1]), batch[:, 1:]).mean()


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the cross-entropy of every token, in float32.

    Neither pass keeps logits in float32: at 124 million parameters and 65 536 tokens
    they would take 13 GB. The backward pass computes the probabilities again.

    Args:
        logits: Shape (..., vocabulary), bfloat16.
        targets: Shape (...), integers.
    """
    return _cross_entropy(logits, targets)[0]


def _cross_entropy(
    logits: jax.Array, targets: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    log_sum = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return log_sum - chosen.astype(jnp.float32), (logits, targets, log_sum)


def _cross_entropy_gradient(
    kept: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, None]:
    logits, targets, log_sum = kept
    probabilities = jnp.exp(logits.astype(jnp.float32) - log_sum[..., None])
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    change = (probabilities - is_target) * gradient[..., None]
    return change.astype(logits.dtype), None


cross_entropy.defvjp(_cross_entropy, _cross_entropy_gradient)


def make(
    size: Size, longest: int, ballast_bytes: int = 0
) -> tuple[Decoder, nnx.Optimizer[Decoder]]:
    """Return a new decoder and its AdamW optimizer."""
    model = Decoder(size, longest, ballast_bytes)
    schedule = optax.linear_schedule(0.0, 6e-4 if size.width > 64 else 1e-2, 10)
    tx = optax.adamw(schedule, b2=0.95, weight_decay=0.1)
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def make_state(size: Size, longest: int) -> tuple[Any, Any]:
    """Return the structure and the arrays of a new decoder and its optimizer.

    One program makes all arrays, so that nothing but them is ever on the device.
    """
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: make(size, longest)))
    arrays = jax.jit(lambda: nnx.to_pure_dict(nnx.state(make(size, longest))))()
    return graphdef, arrays


def jit_update(graphdef: Any) -> Any:
    """Return the update that a person would write: jitted, with a donated state."""

    def update(state: Any, batch: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        model, optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
        optimizer.update(model, grads)
        scalars = {"loss": loss, "grad_norm": optax.tree.norm(grads)}
        return nnx.to_pure_dict(nnx.state((model, optimizer))), scalars

    return jax.jit(update, donate_argnums=0)


def _attention() -> Any:
    return "cudnn" if jax.default_backend() == "gpu" else None


def _ballast_rows(num_bytes: int, size: Size) -> list[int]:
    """Return the rows of each table; none holds more than 2**28 numbers."""
    rows = num_bytes // (4 * size.width)
    most = max(size.vocabulary, 2**28 // size.width)
    parts = -(-rows // most)
    return [rows // parts] * parts if parts else []
