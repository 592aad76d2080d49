"""Model and optimizer as one tree of arrays, and back.

The compiled step takes and gives plain nested dicts: walking NNX objects at every step
costs tens of milliseconds, and a dict can be donated whole. Objects are met only at
the edges: at the start, before an evaluation or a checkpoint, and at the end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
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


def place(model: nnx.Module, optimizer: nnx.Optimizer[Any], mesh: Mesh) -> None:
    """Give both objects arrays of their own on the mesh.

    An array that is sharded over the axes of the mesh keeps its sharding; any other one
    is replicated. All are copied, one after the other, because the step donates them:
    whoever else holds the old arrays (a clone, an average of the weights) keeps them.
    """
    ours: set[int] = set()

    def copy(x: Any) -> jax.Array:
        if id(x) in ours:
            return x
        # device_put may hand back the very buffer it was given.
        copied = jnp.copy(_put(x, _sharding_on(mesh, x)))
        ours.add(id(copied))
        return copied

    pair = (model, optimizer)
    for _, node in nnx.iter_graph(pair):
        if isinstance(node, nnx.Variable):
            node.set_value(jax.tree.map(copy, node.get_value()))
    # What is left are arrays that stand in the objects without a Variable.
    nnx.update(pair, jax.tree.map(copy, nnx.state(pair)))


def _sharding_on(mesh: Mesh, x: Any) -> NamedSharding:
    sharding = getattr(x, "sharding", None)
    if (
        isinstance(sharding, NamedSharding)
        and sharding.mesh.axis_names == mesh.axis_names
        and sharding.device_set == set(mesh.devices.flat)
    ):
        return NamedSharding(mesh, sharding.spec)
    return NamedSharding(mesh, PartitionSpec())


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    if jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key):
        # A key can be put on several processes only as the numbers it is made of.
        wrap = partial(jax.random.wrap_key_data, impl=jax.random.key_impl(x))
        replicated = NamedSharding(sharding.mesh, PartitionSpec())
        return jax.jit(wrap)(jax.device_put(jax.random.key_data(x), replicated))
    return jax.device_put(x, sharding)


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
