from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from .helpers import pair, trainer

if TYPE_CHECKING:
    from pathlib import Path


def arrays(model: nnx.Module, optimizer: nnx.Optimizer[Any]) -> Any:
    return nnx.to_pure_dict(nnx.state((model, optimizer)))


def test_placing_copies_every_array(tmp_path: Path) -> None:
    model, optimizer = pair()
    before = arrays(model, optimizer)

    one = trainer(tmp_path, pair=(model, optimizer), mesh=None)

    after = arrays(one.model, one.optimizer)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert old is not new
        assert new.sharding.device_set == set(jax.devices())
    jax.jit(lambda x: x, donate_argnums=0)(after)
    assert not any(x.is_deleted() for x in jax.tree.leaves(before))
    assert any(x.is_deleted() for x in jax.tree.leaves(after))


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


def test_everything_a_model_holds_is_placed(tmp_path: Path) -> None:
    model = Odd()
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    one = trainer(
        tmp_path,
        pair=(model, optimizer),
        mesh=None,
        loss_fn=lambda model, _: model.weight.sum(),
    )

    assert isinstance(one.model, Odd)
    leaves = jax.tree.leaves(arrays(one.model, one.optimizer))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    assert one.model.tied is one.model.weight
    jax.jit(lambda x: x, donate_argnums=0)(arrays(one.model, one.optimizer))


def test_sharded_arrays_keep_their_place_on_the_mesh(tmp_path: Path) -> None:
    model, optimizer = pair()
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    sharded = NamedSharding(mesh, PartitionSpec("data"))
    model.out.kernel.set_value(jax.device_put(model.out.kernel[...], sharded))

    one = trainer(tmp_path, pair=(model, optimizer), mesh=mesh)

    placed = arrays(one.model, one.optimizer)[0]["out"]
    assert placed["kernel"].sharding.spec == PartitionSpec("data")
    assert placed["bias"].sharding.spec == PartitionSpec()
