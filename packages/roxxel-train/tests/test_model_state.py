from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from roxxel_train._model_sharding import ModelLayout, place
from roxxel_train._model_state import is_sound, put, signature, take

from .helpers import pair


def test_objects_and_tree_are_the_same_values() -> None:
    model, optimizer = pair(seed=1)
    other, other_optimizer = pair(seed=2)

    put(other, other_optimizer, take(model, optimizer))

    np.testing.assert_array_equal(
        other.embed.embedding[...], model.embed.embedding[...]
    )
    assert signature(take(other, other_optimizer)) == signature(take(model, optimizer))


def test_placing_copies_every_array() -> None:
    model, optimizer = pair()
    before = take(model, optimizer)

    place(model, optimizer, ModelLayout(Mesh(np.asarray(jax.devices()), ("data",))))

    after = take(model, optimizer)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert old is not new
        assert new.sharding.device_set == set(jax.devices())
    jax.jit(lambda x: x, donate_argnums=0)(after)
    assert is_sound(before)
    assert not is_sound(after)


def test_signature_sees_another_shape() -> None:
    model, optimizer = pair()
    before = signature(take(model, optimizer))

    model.out = nnx.Linear(4, 14, rngs=nnx.Rngs(0))

    assert signature(take(model, optimizer)) != before


class Odd(nnx.Module):
    """Holds what a model may hold beside parameters."""

    def __init__(self) -> None:
        self.weight = nnx.Param(jnp.ones(2))
        self.tied = self.weight
        self.carry = nnx.Variable((jnp.zeros(3), jnp.ones(3)))
        self.count = nnx.Variable(3)
        self.mask = jnp.ones(4)
        self.rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Param(jnp.zeros(1))])


def test_everything_a_model_holds_is_placed() -> None:
    model = Odd()
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    place(model, optimizer, ModelLayout(Mesh(np.asarray(jax.devices()), ("data",))))

    leaves = jax.tree.leaves(take(model, optimizer))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert model.tied is model.weight
    jax.jit(lambda x: x, donate_argnums=0)(take(model, optimizer))


def test_sharded_arrays_keep_their_place_on_the_mesh() -> None:
    model, optimizer = pair()
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    sharded = NamedSharding(mesh, PartitionSpec("data"))
    model.out.kernel.set_value(jax.device_put(model.out.kernel[...], sharded))

    place(model, optimizer, ModelLayout(Mesh(mesh.devices, mesh.axis_names)))

    placed = take(model, optimizer)[0]["out"]
    assert placed["kernel"].sharding.spec == PartitionSpec("data")
    assert placed["bias"].sharding.spec == PartitionSpec()
