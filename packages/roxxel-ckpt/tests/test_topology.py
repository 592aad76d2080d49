"""A checkpoint fits any mesh: what a device holds is decided by the live arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer
from roxxel_ckpt._arrays import orbax

from .helpers import content, leaves

if TYPE_CHECKING:
    from pathlib import Path

Spec = PartitionSpec


def mesh_of(*shape: int) -> Mesh:
    """Return a mesh of the first devices, axes `data` and `model`."""
    devices = np.array(jax.devices()[: int(np.prod(shape))])
    return Mesh(devices.reshape(shape), ("data", "model"))


def spread(root: Any, mesh: Mesh) -> None:
    """Put every leaf on a mesh: sharded where its shape divides, else everywhere."""

    def placed(leaf: jax.Array) -> jax.Array:
        shape = leaf.shape
        if len(shape) == 2 and shape[1] % 8 == 0:
            spec = Spec("data" if shape[0] % 8 == 0 else None, "model")
        elif len(shape) == 1 and shape[0] % 8 == 0:
            spec = Spec(("data", "model"))
        else:
            spec = Spec()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    nnx.update(root, jax.tree.map(placed, nnx.to_pure_dict(nnx.state(root))))


SHAPES = [(8, 1), (2, 4), (4, 1), (1, 4), (1, 1)]


class Small(nnx.Module):
    """A matrix, a vector, a key and a count."""

    def __init__(self, seed: int) -> None:
        self.linear = nnx.Linear(8, 16, rngs=nnx.Rngs(seed))
        self.rngs = nnx.Rngs(dropout=seed)


def make(seed: int) -> tuple[Small, nnx.Optimizer[Any]]:
    """Return a small model and its optimizer."""
    model = Small(seed)
    return model, nnx.Optimizer(model, optax.adam(seed + 1.0), wrt=nnx.Param)


@pytest.fixture(scope="module")
def of_eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a checkpoint of a 4x2 mesh, seed 0."""
    folder = tmp_path_factory.mktemp("eight")
    model, optimizer = make(seed=0)
    spread(nnx.Dict(model=model, optimizer=optimizer), mesh_of(4, 2))
    with Checkpointer(folder, model, optimizer) as saving:
        saving.save(1)
    return folder


@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_of_eight_devices_fits_any_mesh(
    of_eight: Path, shape: tuple[int, int]
) -> None:
    fresh, fresh_optimizer = make(seed=1)
    spread(nnx.Dict(model=fresh, optimizer=fresh_optimizer), mesh_of(*shape))
    wanted = leaves(fresh, fresh_optimizer)

    assert Checkpointer(of_eight, fresh, fresh_optimizer).restore(strict=True) == 1

    assert content(fresh, fresh_optimizer) == content(*make(seed=0))
    for name, leaf in leaves(fresh, fresh_optimizer).items():
        assert leaf.sharding == wanted[name].sharding, name
        assert leaf.committed, name


def test_what_is_sharded_is_read_in_its_shards_and_never_lies_whole_on_a_device(
    of_eight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, fresh_optimizer = make(seed=1)
    spread(nnx.Dict(model=fresh, optimizer=fresh_optimizer), mesh_of(2, 4))
    live = leaves(fresh, fresh_optimizer)
    largest: dict[str, int] = {}
    read = orbax.read_arrays

    def read_and_look(*arguments: Any) -> dict[str, Any]:
        arrays = read(*arguments)
        for name, array in arrays.items():
            largest[name] = max(shard.data.size for shard in array.addressable_shards)
        return arrays

    monkeypatch.setattr(orbax, "read_arrays", read_and_look)
    Checkpointer(of_eight, fresh, fresh_optimizer).restore()

    assert largest["model/linear/kernel"] == 8 * 16 // 8
    for name, size in largest.items():
        if "rngs" not in name:  # of keys the words are read
            whole, sharding = live[name].shape, live[name].sharding
            assert size == np.prod(sharding.shard_shape(whole)), name


def test_a_checkpoint_of_a_mesh_fits_one_device(of_eight: Path) -> None:
    fresh, fresh_optimizer = make(seed=1)

    Checkpointer(of_eight, fresh, fresh_optimizer).restore(strict=True)

    assert content(fresh, fresh_optimizer) == content(*make(seed=0))


def test_a_checkpoint_of_one_device_fits_a_mesh(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, *make(seed=0)) as saving:
        saving.save(1)
    fresh, fresh_optimizer = make(seed=1)
    spread(nnx.Dict(model=fresh, optimizer=fresh_optimizer), mesh_of(2, 4))

    Checkpointer(tmp_path, fresh, fresh_optimizer).restore(strict=True)

    assert content(fresh, fresh_optimizer) == content(*make(seed=0))
    sharding = fresh.linear.kernel[...].sharding
    assert sharding == NamedSharding(mesh_of(2, 4), Spec("data", "model"))


def test_what_jax_may_move_still_meets_arrays_on_a_mesh(tmp_path: Path) -> None:
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    with Checkpointer(tmp_path, model) as saving:
        saving.save(1)
    Checkpointer(tmp_path, model).restore()
    batch = jax.device_put(
        np.ones((8, 8), np.float32), NamedSharding(mesh_of(8, 1), Spec("data"))
    )

    assert jax.jit(lambda w, x: x @ w)(model.kernel[...], batch).shape == (8, 8)


def test_sharded_keys_come_back_sharded(tmp_path: Path) -> None:
    sharding = NamedSharding(mesh_of(8, 1), Spec("data"))

    def keys(seed: int) -> nnx.Dict[Any]:
        array = jax.device_put(jax.random.split(jax.random.key(seed), 8), sharding)
        return nnx.Dict(keys=nnx.Variable(array))

    saved, fresh = keys(0), keys(1)
    with Checkpointer(tmp_path, saved) as saving:
        saving.save(1)

    Checkpointer(tmp_path, fresh).restore()

    assert content(fresh) == content(saved)
    assert fresh["keys"][...].sharding == sharding
