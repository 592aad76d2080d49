"""A save that copies on the devices first returns before the copy to the host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer, CheckpointWriteError, devices
from roxxel_ckpt._arrays import orbax
from roxxel_ckpt._place.disk import LocalFolder

from .helpers import content, make, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keep copies from going to the host until the event is set."""
    opened, start = threading.Event(), orbax.start_writing

    def start_behind_gate(*arguments: Any) -> Callable[[], None]:
        assert opened.wait(600)
        return start(*arguments)

    monkeypatch.setattr(orbax, "start_writing", start_behind_gate)
    yield opened
    opened.set()


def test_training_goes_on_before_the_state_is_on_the_host(
    tmp_path: Path, gate: threading.Event
) -> None:
    model, optimizer = make()
    train(model, optimizer, range(1))
    with Checkpointer(tmp_path, model, optimizer) as saving:
        then = content(model, optimizer)
        assert saving.save(1, snapshot=True)
        train(model, optimizer, range(1, 4))
        assert content(model, optimizer) != then
        record = saving.last_save
        assert record is not None
        assert (record.is_snapshot, record.total_s) == (True, None)
        gate.set()
        saving.wait()

        assert saving.restore() == 1
        assert content(model, optimizer) == then


def test_arrays_may_be_deleted_once_a_save_has_returned(
    tmp_path: Path, gate: threading.Event
) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    specs = [("data", "model"), (None, "model"), ()]
    tree = [
        jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
        for spec in specs
    ] + [jnp.asarray(values)]
    with Checkpointer(tmp_path) as saving:
        saving.save(1, state=tree, snapshot=True)
        for array in tree:
            array.delete()
        gate.set()
        saving.wait()
        loaded = saving.load(like=tree)

    for array, like in zip(loaded, tree, strict=True):
        assert array.sharding == like.sharding
        np.testing.assert_array_equal(array, values)


def test_no_two_copies_of_a_state_are_held_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, start = threading.Event(), orbax.start_writing

    def start_behind_gate(directory: Path, arrays: Any) -> Any:
        if directory.is_relative_to(tmp_path / "a"):
            assert opened.wait(600)
        return start(directory, arrays)

    monkeypatch.setattr(orbax, "start_writing", start_behind_gate)
    tree = {"w": jnp.ones(8)}
    first, second = (Checkpointer(tmp_path / name) for name in "ab")
    with first, second:
        for saving in (first, second):
            saving.save(1, state=tree, snapshot=True)
        record = second.last_save
        assert record is not None
        assert not record.is_snapshot  # the first holds its copy
        opened.set()
        first.wait()
        second.save(2, state=tree, snapshot=True)
        found = [saving.last_save for saving in (first, second)]
        assert [each and each.is_snapshot for each in found] == [True, True]
        second.wait()
        assert second.steps() == [1, 2]


def test_a_save_waits_for_the_host_if_no_device_has_room_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> Any:
        def refuse(_: Any) -> Any:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

        return refuse

    monkeypatch.setattr(devices, "_copier", full)
    tree = {"w": jnp.arange(8)}
    with Checkpointer(tmp_path) as saving:
        saving.save(1, state=tree, snapshot=True)
        record = saving.last_save
        assert record is not None
        assert not record.is_snapshot
        saving.wait()
        assert saving.load(like=tree)["w"].tolist() == [*range(8)]


def test_an_error_behind_the_steps_is_raised_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> Any:
        raise OSError(28, "No space left on device")

    tree = {"w": jnp.ones(8)}
    saving = Checkpointer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "staged", no_space)
        assert saving.save(1, state=tree, snapshot=True)
        with pytest.raises(CheckpointWriteError, match="save of step 1 failed"):
            saving.save(2, state=tree)
    with saving:
        assert saving.save(2, state=tree)


@given(
    free=st.lists(st.integers(0, 300), min_size=8, max_size=8),
    is_sharded=st.booleans(),
)
def test_room_is_room_on_every_device(free: list[int], *, is_sharded: bool) -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spec = PartitionSpec("data") if is_sharded else PartitionSpec()
    array = jax.device_put(np.zeros(64, np.int32), NamedSharding(mesh, spec))
    needed = 32 if is_sharded else 256
    by_device = dict(zip(jax.devices(), free, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_free_bytes", by_device.__getitem__)
        assert devices.has_room({"w": array}) is (min(free) >= needed)


def test_too_little_memory_of_the_host_is_said_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gpu:
        platform = "gpu"

    monkeypatch.setattr(devices, "bytes_by_device", lambda _: {Gpu: 70 << 30})
    monkeypatch.setattr(np, "zeros", lambda *_: None)
    monkeypatch.setattr(jax.sharding, "SingleDeviceSharding", lambda *_, **__: None)

    def refuse(*_: object) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of host memory")

    monkeypatch.setattr(jax, "device_put", refuse)
    with pytest.raises(CheckpointWriteError, match=r"copies 70\.0 GiB .* above 70 "):
        devices.reserve_on_host({})


def test_a_device_that_does_not_tell_its_memory_has_no_room(tmp_path: Path) -> None:
    model, optimizer = make()
    with Checkpointer(tmp_path, model, optimizer) as saving:
        assert saving.has_room is None
        saving.warm_up()
        saving.save(1)
        record = saving.last_save
    assert record is not None
    assert not record.is_snapshot
