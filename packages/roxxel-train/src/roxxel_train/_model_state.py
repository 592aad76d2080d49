"""Model and optimizer as one tree of arrays, and back.

The compiled step takes and gives plain nested dicts: walking NNX objects at every step
costs tens of milliseconds, and a dict can be donated whole. Objects are met only at
the edges: at the start, before an evaluation or a checkpoint, and at the end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from jax.sharding import Mesh

Tree = Any
"""Nested dicts of arrays: `{0: model, 1: optimizer}`."""


@dataclass(frozen=True)
class ModelState:
    """What `eval_fn` gets.

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


def place(model: nnx.Module, optimizer: nnx.Optimizer[Any], mesh: Mesh) -> None:
    """Give both objects arrays of their own on the mesh.

    An array that lies on the devices of the mesh already keeps its sharding; any other
    one is replicated. All are copied, one after the other, because the step donates
    them: whoever else holds the old arrays (a clone, an average of the weights) keeps
    them.
    """
    devices = set(mesh.devices.flat)
    replicated = NamedSharding(mesh, PartitionSpec())

    def copy(x: Any) -> jax.Array:
        on_mesh = isinstance(x, jax.Array) and x.sharding.device_set == devices
        # device_put may hand back the very buffer it was given.
        return jnp.copy(jax.device_put(x, x.sharding if on_mesh else replicated))

    pair = (model, optimizer)
    for path, leaf in jax.tree_util.tree_flatten_with_path(take(*pair))[0]:
        one: Any = copy(leaf)
        for entry in reversed(path):
            one = {entry.key: one}
        nnx.update(pair, one)


def is_sound(tree: Tree) -> bool:
    """Return whether no array was donated to a step that gave nothing back."""
    return not any(x.is_deleted() for x in jax.tree.leaves(tree))


def signature(tree: Tree) -> str:
    """Return a hash of every path, shape and dtype: equal for equal models."""
    lines = [
        f"{jax.tree_util.keystr(path)} {leaf.shape} {leaf.dtype}"
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
