"""Model and optimizer as one tree of arrays, and back.

The compiled step takes and gives plain nested dicts: walking NNX objects at every step
costs tens of milliseconds, and a dict can be donated whole. Objects are met only at
the edges: at the start, before an evaluation or a checkpoint, and at the end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

Tree = Any
"""Nested dicts of arrays: `{0: model, 1: optimizer}`."""


@dataclass(frozen=True)
class ModelState:
    """What `eval_fn` gets.

    The arrays are donated to the next update: keep copies, not the arrays.

    Attributes:
        model: The model, callable, with its newest values.
        optimizer: Its optimizer, likewise.
        step: Updates done; `int(state.step[...])` reads it.
    """

    model: nnx.Module
    optimizer: nnx.Optimizer[Any]
    step: nnx.Variable[Any]


def take(model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> Tree:
    """Return the arrays of both objects as one tree; nothing is copied."""
    return nnx.to_pure_dict(nnx.state((model, optimizer)))


def put(model: nnx.Module, optimizer: nnx.Optimizer[Any], tree: Tree) -> None:
    """Make both objects hold the arrays of `tree`; nothing is copied."""
    nnx.update((model, optimizer), tree)


def is_sound(tree: Tree) -> bool:
    """Return whether no array was donated to a step that gave nothing back."""
    return not any(x.is_deleted() for x in jax.tree.leaves(tree))


@jax.jit
def is_finite(tree: Tree) -> jax.Array:
    """Return whether every number of the tree is finite, as a bool scalar."""
    return jnp.asarray(
        [
            jnp.isfinite(x).all()
            for x in jax.tree.leaves(tree)
            if jnp.issubdtype(x.dtype, jnp.inexact)
        ]
    ).all()


def signature(tree: Tree) -> str:
    """Return a hash of every path, shape and dtype: equal for equal models."""
    lines = [
        f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}"
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
