"""Restoring with `release=True` needs the memory of one state."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import (
    CheckpointDamagedError,
    Checkpointer,
    CheckpointMismatchError,
    CheckpointStateLostError,
)
from roxxel_ckpt._arrays import orbax

from .helpers import content, flip, largest_file

if TYPE_CHECKING:
    from pathlib import Path

LEAVES, LEAF_BYTES = 16, 1 << 20


def live_bytes() -> int:
    """Return the bytes of all buffers of live arrays, each buffer once."""
    found: dict[int, int] = {}
    for array in jax.live_arrays():
        is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
        if not is_key and not array.is_deleted():
            for shard in array.addressable_shards:
                found[shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    return sum(found.values())


def state(offset: int, num_devices: int, num_bytes: int = LEAF_BYTES) -> nnx.Dict[Any]:
    """Return leaves on a mesh of devices, one small leaf and random keys."""
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    numbers = np.arange(num_bytes // 4, dtype=np.float32) + offset
    leaves = {
        f"leaf{i}": nnx.Param(jax.device_put(numbers + i, sharding))
        for i in range(LEAVES)
    }
    small = nnx.Variable(jax.device_put(np.full(8, offset), sharding))
    return nnx.Dict(**leaves, small=small, rngs=nnx.Rngs(offset))


@pytest.mark.parametrize("num_devices", [1, 4])
def test_restore_with_release_needs_the_memory_of_training(
    tmp_path: Path, num_devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = state(0, num_devices)
    before = content(model)
    gc.collect()
    others = live_bytes() - LEAVES * LEAF_BYTES
    counted: list[int] = []
    read = orbax.read_arrays

    def read_and_count(*arguments: Any) -> dict[str, Any]:
        counted.append(live_bytes())
        arrays = read(*arguments)
        counted.append(live_bytes())
        return arrays

    monkeypatch.setattr(orbax, "read_arrays", read_and_count)
    with Checkpointer(tmp_path, model) as saving:
        saving.save(1)
        peaks: dict[bool, float] = {}
        for release in (True, False):
            counted.clear()
            saving.restore(release=release)
            counted.append(live_bytes())
            peaks[release] = (max(counted) - others) / (LEAVES * LEAF_BYTES)

    assert content(model) == before
    assert peaks[True] <= 1.1
    assert peaks[False] >= 1.9


def test_nothing_is_deleted_before_the_checkpoint_is_verified(tmp_path: Path) -> None:
    model = state(0, 1, 1 << 16)
    with Checkpointer(tmp_path, model) as saving:
        assert saving.restore(release=True) == 0
        saving.save(1)
        saving.wait()
        flip(largest_file(tmp_path / "1" / "state"))
        before = content(model)

        with pytest.raises(CheckpointDamagedError):
            saving.restore(release=True)
        with pytest.raises(CheckpointMismatchError):
            Checkpointer(tmp_path, state(0, 1, 1 << 17)).restore(release=True)
    assert content(model) == before


def test_leaves_that_the_checkpoint_lacks_are_kept(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, state(0, 1, 1 << 16)) as saving:
        saving.save(1)
    model = state(1, 1, 1 << 16)
    extra = np.arange(1 << 16, dtype=np.float32)
    model["new"] = nnx.Param(jax.device_put(extra))

    assert Checkpointer(tmp_path, model).restore(release=True) == 1

    assert (model["new"][...] == extra).all()
    model.pop("new")
    assert content(model) == content(state(0, 1, 1 << 16))


def test_a_failed_read_says_that_the_live_state_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = state(0, 1, 1 << 16)
    before = content(model)
    saving = Checkpointer(tmp_path, model)
    saving.save(1)
    saving.wait()

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(orbax, "read_arrays", fail)
        with pytest.raises(CheckpointStateLostError) as caught:
            saving.restore(release=True)
    for named in (str(tmp_path / "1"), "Input/output error", "the checkpoint is unch"):
        assert named in str(caught.value)

    with pytest.raises(CheckpointStateLostError, match="restore again"):
        saving.save(2)
    assert saving.steps() == [1]
    # The same objects take the values once the disk can be read again.
    assert saving.restore(release=True) == 1
    assert content(model) == before
    assert saving.save(2)
    saving.close()
