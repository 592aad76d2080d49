"""Updates made twice: a flipped bit ends the run, and without one nothing changes."""

from __future__ import annotations

import copy
import ctypes
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_curriculum import Phase
from roxxel_train import RunFolder, SilentCorruptionError
from roxxel_train.config import TrainConfig

from .helpers import adam, loss_fn, mesh_of, pair, rows, trainer, values

if TYPE_CHECKING:
    from pathlib import Path

    from jax.sharding import Mesh

pytestmark = pytest.mark.first

PHASES = [Phase(6, 8, 9), Phase(6, 16, 9)]


def flipping(at: int, root: str, device: int) -> dict[str, Any]:
    """Return options of a run in which a bit in memory flips after step `at`."""

    def flip(state: Any) -> None:
        if int(state.step[...]) != at:
            return
        # Also the copy of the state, which is made meanwhile.
        for each in jax.live_arrays():
            with suppress(RuntimeError):  # some were donated
                each.block_until_ready()
        leaves = jax.tree.leaves(nnx.state(getattr(state, root)))
        largest = max(leaves, key=lambda x: x.nbytes)
        assert largest.sharding.num_devices > device
        address = largest.addressable_shards[device].data.unsafe_buffer_pointer()
        # The last bits of a moment vanish where the next gradient is added.
        ctypes.c_uint8.from_address(address + 2).value ^= 1

    return {"eval_fn": flip, "eval_every": 1}


def split_pair(mesh: Mesh) -> Any:
    """Return a model whose table is split by columns, and its optimizer."""
    model, _ = pair()
    columns = NamedSharding(mesh, PartitionSpec(None, "data"))
    table = model.embed.embedding
    table.set_value(jax.device_put(table.get_value(), columns))
    return model, nnx.Optimizer(model, adam(1e-2), wrt=nnx.Param)


@pytest.mark.parametrize(
    ("root", "devices", "is_split"),
    [("model", 1, False), ("optimizer", 4, True)],
)
def test_a_flipped_bit_is_found_at_the_next_check(
    tmp_path: Path, root: str, devices: int, is_split: bool
) -> None:
    number, mesh = devices // 2, mesh_of(devices)
    options = {"mesh": mesh, **flipping(7, root, number)}
    if is_split:
        options["pair"] = split_pair(mesh)
    one = trainer(tmp_path, PHASES, verify_every=4, checkpoint_every=3, **options)

    with pytest.raises(SilentCorruptionError, match=r"step 8: .* other bits") as found:
        one.run()

    assert found.value.step == 8
    first = next(iter(found.value.leaves))
    assert first.startswith("model/")
    assert f"in {first} (" in str(found.value)
    # The other devices have sound copies, so only the faulty one is named.
    assert found.value.devices == (str(jax.devices()[number]),)
    assert str(copy.copy(found.value)) == str(found.value)
    assert [x.step for x in RunFolder(tmp_path / "run").checkpoints()[0]] == [3, 6]


def test_a_wrong_result_of_an_update_is_found(tmp_path: Path) -> None:
    calls: list[int] = []

    def factor(_: Any) -> Any:
        calls.append(1)
        # The 4th update is made twice, so call 9 is the 8th update.
        return np.float32(1.5 if len(calls) == 9 else 1)

    def faulty(model: Any, batch: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), np.float32)
        loss = loss_fn(model, batch)
        return loss * jax.pure_callback(factor, shape, batch[0, 0])

    one = trainer(tmp_path, PHASES, loss_fn=faulty, verify_every=4)

    with pytest.raises(SilentCorruptionError) as found:
        one.run()

    assert found.value.step == 8
    assert "loss" in found.value.leaves


def test_a_sound_run_has_no_alarm_and_no_other_bits(tmp_path: Path) -> None:
    found: list[Any] = []
    # Update 31 is the first of a phase, which empties the window of `skip_spikes`.
    for name, every in (("twice", 7), ("at a phase", 31), ("once", None)):
        (tmp_path / name).mkdir()
        one = trainer(
            tmp_path / name,
            [Phase(30, 8, 9), Phase(20, 4, 17)],
            verify_every=every,
            skip_spikes={},
            grad_accum_steps=2,
            checkpoint_every=10,
        )
        one.run(until=25)
        assert one.run().step == 50
        found.append((values(one), rows(tmp_path / name)))

    assert found[0] == found[1] == found[2]


def test_a_gpu_needs_operations_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(pair()[0], verify_every=4)
    for flags in ("", "--xla_gpu_deterministic_ops=false"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        config.check_platform("tpu")
        with pytest.raises(ValueError, match=r"verify_every=4 .*deterministic_ops"):
            config.check_platform("gpu")

    monkeypatch.setenv("XLA_FLAGS", "--x=1 --xla_gpu_deterministic_ops=true")
    config.check_platform("gpu")
