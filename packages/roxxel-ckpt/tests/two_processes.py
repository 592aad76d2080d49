"""The program that `test_processes.py` runs in two processes at the same time.

Every process writes a line to `said-<process>` for each message that the test asserts.
"""

from __future__ import annotations

import resource
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from golden_states import Model, on_all_devices
from helpers import content, flip, names
from roxxel_ckpt import (
    Checkpointer,
    CheckpointError,
    CheckpointStateLostError,
)
from roxxel_ckpt._arrays import orbax
from roxxel_ckpt._place.disk import LocalFolder
from roxxel_ckpt.coordination import (
    Channel,
    CoordinationService,
    coordination_service,
)

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).with_name("golden")
# A chunk of the weights that only process 1 holds.
OF_SECOND = "state/model/weights/c/2/0"


class Run:
    """One process of the run."""

    def __init__(self, index: int, parent: Path) -> None:
        self.index, self.parent = index, parent
        self.folder = parent / "run"
        self.model = Model(0, on_all_devices)
        self.saving = Checkpointer(self.folder, self.model, max_to_keep=2, timeout=600)
        self.barriers = 0

    def say(self, words: str) -> None:
        """Note a line for the test, without the path of the folder."""
        with (self.parent / f"said-{self.index}").open("a") as notes:
            notes.write(words.replace(f"{self.parent}/", "") + "\n")

    def meet(self) -> None:
        """Wait for the other process, without the devices."""
        service = coordination_service()
        assert isinstance(service, CoordinationService)
        self.barriers += 1
        service.barrier(f"test/{self.barriers}", 60)

    def by_first(self, act: Callable[[], object]) -> None:
        """Let the first process do something while the other process waits."""
        self.meet()
        if self.index == 0:
            act()
        self.meet()

    def set(self, offset: int) -> None:
        """Give the model the values of an offset."""
        fresh = Model(offset, on_all_devices)
        self.model.weights.set_value(fresh.weights[...])
        self.model.count.set_value(fresh.count[...])

    def holds(self, offset: int) -> bool:
        """Return whether the shards of this process are those of an offset."""
        rows = np.arange(32.0).reshape(8, 4) + offset
        return int(self.model.count[...]) == offset and all(
            (np.asarray(shard.data) == rows[shard.index]).all()
            for shard in self.model.weights[...].addressable_shards
        )

    def failure_of(self, call: Callable[[], object]) -> None:
        """Note the error of a call."""
        try:
            call()
        except CheckpointError as error:
            self.say(f"{type(error).__name__}: {error}")
        else:
            raise AssertionError(f"{call} raised nothing")

    def save_and_restore(self) -> None:
        """Save three steps, and restore the last one in both ways."""
        assert self.saving.restore() == 0
        committed: list[int] = []
        for step in (1, 2, 3):
            self.set(step)
            assert self.saving.save(
                step,
                {"loss": 1.0 / step},
                {"step": step},
                files=lambda step=step: committed.append(step) or {},
            )
        assert self.saving.save(3) is False
        self.saving.wait()
        assert committed == ([] if self.index else [1, 2, 3])
        assert self.saving.steps() == [2, 3]
        for release in (False, True):
            self.set(9)
            assert self.saving.restore(release=release) == 3
            assert self.holds(3)
            assert self.saving.extra == {"step": 3}
        assert not self.model.half[...].committed

    def fall_back(self) -> None:
        """Pass over a step whose damage only the second process can see."""
        self.by_first(lambda: flip(self.folder / "3" / OF_SECOND))
        self.failure_of(lambda: self.saving.restore(3))
        assert self.saving.peek() == (2, {"step": 2})
        assert self.saving.restore() == 2
        assert self.holds(2)
        self.set(3)
        assert self.saving.save(3)
        self.saving.close()

    def fail_together(self) -> None:
        """Fail to write on one process; both processes raise at their next call."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        random = np.random.default_rng(self.index).normal(size=(1 << 20,))
        small = self.model.weights[...]
        self.model.weights.set_value(on_all_devices(random.reshape(-1, 4)))
        calls = ((1, self.saving.wait), (0, lambda: self.saving.save(5)))
        for failing, call in calls:
            if self.index == failing:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
            assert self.saving.save(4)
            self.failure_of(call)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert self.saving.latest_step == 3
            self.meet()
        self.model.weights.set_value(small)
        assert self.saving.save(4)
        self.saving.wait()
        assert self.saving.steps() == [2, 3, 4]

    def read_alone(self) -> None:
        """Fail to read on one process, before and after the arrays are deleted."""
        read = orbax.read_arrays

        def fail(*arguments: Any) -> dict[str, Any]:
            if self.index == 1:
                raise OSError(5, "Input/output error")
            return read(*arguments)

        self.set(7)
        orbax.read_arrays = fail
        self.failure_of(self.saving.restore)
        assert self.holds(7)
        try:
            self.saving.restore(release=True)
        except CheckpointStateLostError as error:
            self.say(f"{type(error).__name__}: {error}")
        orbax.read_arrays = read
        assert self.saving.restore() == 4

    def differ(self) -> None:
        """Save different steps, and restore where the other process saves."""
        self.failure_of(lambda: self.saving.save(5 + self.index))
        self.failure_of(
            self.saving.restore if self.index else lambda: self.saving.save(5)
        )
        file = self.parent / "file"
        self.by_first(lambda: file.write_text(""))
        self.failure_of(lambda: Checkpointer(file / "run", self.model).save(1))

    def be_late(self) -> None:
        """Call nothing on one process; the late call of that process fails, too."""
        hasty = Checkpointer(self.folder, self.model, timeout=0.5)
        if self.index == 0:
            self.failure_of(hasty.peek)
        self.meet()
        if self.index == 1:
            self.failure_of(hasty.peek)
        assert self.saving.peek() == (4, None)

    def read_late(self) -> None:
        """Read an answer after process 0 gave up on the next agreement."""
        channel, get = Channel("test/late"), CoordinationService.get

        def get_late(*arguments: Any) -> str:
            self.meet()
            return get(*arguments)

        if self.index == 1:
            with patch.object(CoordinationService, "get", get_late):
                assert channel.agree("one", lambda: 2, sum, 600) == 3
        else:
            assert channel.agree("one", lambda: 1, sum, 600) == 3
            self.failure_of(lambda: channel.agree("two", lambda: 1, sum, 0.2))
            self.meet()

    def start_no_thread(self) -> None:
        """Fail to start the thread of a save on one process."""
        start = threading.Thread.start

        def fail(thread: threading.Thread) -> None:
            if thread.name.startswith("roxxel-ckpt-save"):
                raise RuntimeError("can't start new thread")
            start(thread)

        with patch.object(threading.Thread, "start", fail if self.index else start):
            self.failure_of(lambda: self.whole_save(self.saving, 5))
        assert self.saving.steps() == [2, 3, 4]

    def lose_files(self) -> None:
        """Lose on the disk what the second process has written of a save."""
        deliver = LocalFolder.deliver

        def lose(folder: LocalFolder, staging: Path) -> None:
            deliver(folder, staging)
            if self.index == 1:
                (staging.parent / "digests" / "1.json").unlink()

        with patch.object(LocalFolder, "deliver", lose):
            self.failure_of(lambda: self.whole_save(self.saving, 5))
        assert self.saving.steps() == [2, 3, 4]

    def read_two_saves(self) -> None:
        """Restore a step that each process finds as another save of it."""
        name = ("one_process", "golden_one")[self.index]
        reading = Checkpointer(self.parent / name, self.model, timeout=600)
        self.failure_of(lambda: reading.restore(2))

    def share_no_folder(self) -> None:
        """Save where every process sees another folder under the same path."""
        link = self.parent / f"link-{self.index}"
        own = Checkpointer(link / "run", self.model, timeout=600)
        self.failure_of(own.check_shared)
        self.failure_of(lambda: own.save(1))
        assert own.steps() == []

        shared = Checkpointer(self.parent / "shared", self.model, timeout=600)
        shared.check_shared()
        self.meet()
        assert names(self.parent / "shared") == []
        self.meet()

    def whole_save(self, saving: Checkpointer, step: int = 1) -> None:
        """Save a step and wait for the commit."""
        saving.save(step)
        saving.wait()

    def save_a_tree(self) -> None:
        """Save a tree that every step makes anew; load it into shapes and values."""
        saving = Checkpointer(self.parent / "tree", max_to_keep=2, timeout=600)
        tree = sharded_tree(0)
        for step in (1, 2, 3):
            old, tree = tree, jax.tree.map(lambda leaf: leaf + 1, tree)
            old["params"]["w"].delete()  # as a step does that donates its state
            is_copied = step == 2
            assert saving.save(
                step, {"loss": 1.0 / step}, state=tree, snapshot=is_copied
            )
            record = saving.last_save
            assert record is not None
            assert record.is_snapshot == is_copied
        saving.wait()
        assert saving.steps() == [2, 3]
        for like in (jax.eval_shape(lambda: tree), sharded_tree(9)):
            if isinstance(like["count"], jax.ShapeDtypeStruct):
                like["params"]["w"] = jax.ShapeDtypeStruct(
                    (8, 4), np.float32, sharding=tree["params"]["w"].sharding
                )
            found = saving.load(like=like)
            same = jax.tree.map(alike, found, tree)
            assert jax.tree.all(same), same
            assert found["params"]["w"].sharding == tree["params"]["w"].sharding
        self.by_first(
            lambda: flip(self.parent / "tree" / "3" / "state/state/params/w/c/2/0")
        )
        self.failure_of(lambda: saving.load(3, like=tree))
        assert saving.load(like=tree)["count"] == 2

    def share_small_leaves(self) -> None:
        """Save many small leaves, of which process 0 writes those that it holds."""
        folder = self.parent / "small"
        saving = Checkpointer(folder, timeout=600)
        tree = {
            "alone": {str(n): jnp.full(3, n) for n in range(300)},
            "everywhere": on_all_devices(np.arange(4.0, dtype=np.float32), spec=()),
            "rows": on_all_devices(np.arange(4.0, dtype=np.float32)),
        }
        saving.save(1, state=tree)
        saving.wait()
        assert names(folder / "1" / "state" / "state") == ["rows"]
        same = jax.tree.map(alike, saving.load(like=tree), tree)
        assert jax.tree.all(same), same

    def read_other_counts(self) -> None:
        """Restore checkpoints of one process, of two, and damaged ones."""
        for name in ("one_process", "golden_one", "golden_two"):
            fresh = Model(9, on_all_devices)
            reading = Checkpointer(self.parent / name, fresh, timeout=600)
            assert reading.restore(strict=True, release=True) == 2
            expected = content(Model(2, on_all_devices).rngs)
            assert content(fresh.rngs) == expected, name
            self.model = fresh
            assert self.holds(2), name
        for number, row in enumerate((0, 2)):
            damaged = self.parent / f"damaged-{number}"
            file = damaged / f"2/state/model/weights/c/{row}/0"
            self.by_first(
                lambda to=damaged: shutil.copytree(GOLDEN / "v2_two_processes", to)
            )
            self.by_first(lambda file=file: flip(file))
            self.failure_of(lambda to=damaged: Checkpointer(to, self.model).restore(2))


def sharded_tree(offset: int) -> dict[str, Any]:
    """Return a tree with rows on the devices of both processes."""
    rows = np.arange(32.0, dtype=np.float32).reshape(8, 4) + offset
    half = jnp.arange(3.0, dtype=jnp.bfloat16) + offset
    return {"params": {"w": on_all_devices(rows), "half": half}, "count": offset}


def alike(a: Any, b: Any) -> bool:
    """Return whether the parts of two leaves on this process are equal."""
    if not isinstance(b, jax.Array):
        return bool(a == b)
    return all(
        (np.asarray(mine.data) == np.asarray(other.data)).all()
        for mine, other in zip(a.addressable_shards, b.addressable_shards, strict=True)
    )


def main() -> None:
    """Go through the life of a run."""
    port, index, parent = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    run = Run(index, parent)
    run.save_and_restore()
    run.fall_back()
    run.fail_together()
    run.read_alone()
    run.differ()
    run.be_late()
    run.read_late()
    run.start_no_thread()
    run.lose_files()
    run.read_two_saves()
    run.share_no_folder()
    run.save_a_tree()
    run.share_small_leaves()
    run.read_other_counts()
    run.say("done")
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
