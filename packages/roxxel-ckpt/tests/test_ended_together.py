"""When one array fails, others have ended before the error is raised.

A write that goes on would create files in a folder that is being removed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest
import tensorstore
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer, CheckpointError, CheckpointWriteError

from .helpers import names

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

# Each is one round of the event loop, more than Orbax needs to end at the first error.
ROUNDS = 30


class Calls:
    """Stands for TensorStore: calls that take many rounds of the loop, or fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def slow(self, name: str) -> None:
        self.begun.append(name)
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        self.ended.append(name)


class Sharded:
    """An opened array: the first of its shards fails, and the others are slow."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def __getitem__(self, index: Any) -> Sharded:
        return self

    async def write(self, *_: Any, **__: Any) -> None:
        if not any(name.startswith("write") for name in self.calls.begun):
            self.calls.begun.append("write 0")
            self.calls.ended.append("write 0")
            raise ValueError("the disk is full")
        await self.calls.slow(f"write {len(self.calls.begun)}")


def test_a_save_that_fails_waits_for_every_shard_that_it_began_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()

    async def fake_open(spec: Any, **_: Any) -> Sharded:
        if "first" in str(spec):
            raise ValueError("the disk is full")
        await calls.slow("open")
        return Sharded(calls)

    mesh = Mesh(np.asarray(jax.devices()[:4]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    state = {
        "first": jax.device_put(np.zeros(4), sharding),
        "second": jax.device_put(np.zeros(4), sharding),
    }
    with Checkpointer(tmp_path) as saving:
        monkeypatch.setattr(tensorstore, "open", fake_open)
        saving.save(1, state=state)
        with pytest.raises(CheckpointWriteError, match="the disk is full"):
            saving.wait()

    assert len(calls.begun) == len(("open", "open again", *range(4)))
    assert calls.ended == calls.begun
    assert names(tmp_path) == []


class Begun:
    """A future of TensorStore, which runs before anybody waits for it."""

    def __init__(self, calls: Calls, name: str, future: Any) -> None:
        self.calls, self.name, self.future = calls, name, future
        calls.begun.append(name)

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            return (yield from self.future.__await__())
        finally:
            self.calls.ended.append(self.name)


def test_a_restore_that_fails_waits_for_every_array_that_it_began_to_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real_open = Calls(), tensorstore.open
    state = {"first": np.zeros(4), "second": np.ones(4)}

    def open_and_lose_the_next(spec: Any, **options: Any) -> Begun:
        for path in tmp_path.rglob("second/zarr.json"):
            path.unlink()
        return Begun(calls, str(spec), real_open(spec, **options))

    with Checkpointer(tmp_path) as saving:
        saving.save(1, state=state)
        saving.wait()
        monkeypatch.setattr(tensorstore, "open", open_and_lose_the_next)
        with pytest.raises(CheckpointError, match="second"):
            saving.load(like=state)

    assert calls.begun
    assert sorted(calls.ended) == sorted(calls.begun)
