"""The program that `test_processes.py` runs twice at the same time."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import (
    Checkpointer,
    CheckpointError,
    CheckpointWriteError,
    _background,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

ROWS = 8


class State(nnx.Module):
    """Something on all devices, something on each process alone, and random keys."""

    def __init__(self, weights: jax.Array) -> None:
        self.weights: nnx.Variable[Any] = nnx.Param(weights)
        self.local: nnx.Variable[Any] = nnx.Variable(jnp.arange(3.0))
        self.rngs = nnx.Rngs(7)


class Run:
    """One process of the run."""

    def __init__(self, index: int, folder: Path) -> None:
        self.index, self.folder = index, folder
        mesh = Mesh(np.array(jax.devices()), ("data",))
        self.spread = NamedSharding(mesh, PartitionSpec("data"))
        start = np.arange(4.0 * ROWS).reshape(ROWS, 4)
        self.model = State(self.placed(start.shape, lambda rows: start[rows]))
        self.saving = Checkpointer(folder, self.model, max_to_keep=2, timeout=60)

    def placed(
        self, shape: tuple[int, int], rows_of: Callable[[slice], np.ndarray[Any, Any]]
    ) -> jax.Array:
        """Return an array of which every device makes its own rows."""

        def part(index: Any) -> np.ndarray[Any, Any]:
            return rows_of(index[0])

        return jax.make_array_from_callback(shape, self.spread, part)

    def say(self, word: str) -> None:
        """Note a line that the test reads; the first process adds what lies there.

        In a file, for on stdout JAX's Gloo writes between the lines.
        """
        first = self.index == 0
        names = sorted(path.name for path in self.folder.iterdir()) if first else []
        with (self.folder.parent / f"said-{self.index}").open("a") as notes:
            notes.write(" ".join((word, *names)) + "\n")

    @contextlib.contextmanager
    def by_first(self, what: str) -> Generator[bool]:
        """Let the first process do something while the others wait."""
        sync_global_devices(f"before {what}")
        yield self.index == 0
        sync_global_devices(f"after {what}")

    def save_and_restore(self) -> None:
        """Save three steps and take the last one back."""
        saving, model, spread = self.saving, self.model, self.spread
        assert saving.restore() == 0
        for step in (1, 2, 3):
            model.weights.set_value(
                jax.jit(lambda x: x + 1, out_shardings=spread)(model.weights[...])
            )
            assert saving.save(step, {"loss": 1.0 / step}, {"step": step})
        assert saving.save(3) is False
        saving.wait()
        assert saving.latest_step == 3
        self.say("saved")

        model.weights.set_value(self.placed((ROWS, 4), lambda _: np.zeros((2, 4))))
        model.local.set_value(jnp.zeros(3))
        assert saving.restore() == 3
        assert saving.extra == {"step": 3}
        for shard in model.weights[...].addressable_shards:
            expected = np.arange(4.0 * ROWS).reshape(ROWS, 4)[shard.index] + 3
            assert (np.asarray(shard.data) == expected).all()
        assert model.weights[...].sharding == spread
        assert model.local[...].tolist() == [0.0, 1.0, 2.0]
        assert not model.local[...].committed

    def fall_back(self) -> None:
        """Pass over a damaged step, and take one without digests."""
        with self.by_first("damage") as first:
            if first:
                (self.folder / "3" / "state" / "manifest.ocdbt").unlink()
        assert self.saving.peek() == (2, {"step": 2})
        assert self.saving.restore() == 2
        assert self.saving.save(3)
        self.saving.close()
        with self.by_first("no digests") as first:
            if first:
                (self.folder / "3" / "digests.json").unlink()
        assert self.saving.restore() == 3

    def fail_together(self) -> None:
        """Fail to write on one process; hear of it on both, wherever it is asked."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        weights, saving = self.model.weights, self.saving
        random = np.random.default_rng(self.index)
        large = self.placed((1 << 18, 4), lambda _: random.normal(size=(1 << 16, 4)))
        small = weights[...]
        weights.set_value(large)
        asks = ((1, saving.wait), (0, lambda: saving.save(5)), (1, saving.close))
        for failing, ask in asks:
            if self.index == failing:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
            assert saving.save(4)
            try:
                ask()
            except CheckpointWriteError as error:
                self.say(str(error).removeprefix(f"{self.folder}: "))
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert saving.latest_step == 3
            sync_global_devices("failed")
        weights.set_value(small)
        assert saving.save(4)
        saving.wait()
        assert saving.latest_step == 4

    def give_up_alone(self) -> None:
        """Give a save up on one process; the other one hears of it."""

        def describe() -> tuple[None, None]:
            self.raise_on_second()
            return None, None

        try:
            assert self.saving.save(5, describe=describe)
            self.saving.wait()
        except KeyError:
            self.say("gave up")
        except CheckpointWriteError as error:
            self.say(str(error).removeprefix(f"{self.folder}: "))
        sync_global_devices("given up")
        assert self.saving.latest_step == 4

    def raise_alone(self) -> None:
        """Leave the loop of one process by an error while the other one goes on."""
        try:
            with self.saving as saving:
                assert saving.save(5)
                self.raise_on_second()
                saving.wait()
        except KeyError:
            self.say("raised")
        sync_global_devices("raised")
        assert self.saving.latest_step == 5

    def raise_on_second(self) -> None:
        """Raise an error on the second process."""
        if self.index == 1:
            raise KeyError("mine")

    def refuse(self) -> None:
        """Save where nothing can be saved."""
        file = self.folder.parent / "file"
        with self.by_first("file") as first:
            if first:
                file.write_text("")
        try:
            Checkpointer(file / "run", self.model).save(1)
        except CheckpointError as error:
            self.say(f"refused {type(error).__name__}")


def main() -> None:
    """Go through the life of a run."""
    # Of saves in the background, also where Python could not end them at exit.
    _background.FINISHES_AT_EXIT = True
    port, index, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    run = Run(index, folder)
    run.save_and_restore()
    run.fall_back()
    run.fail_together()
    run.give_up_alone()
    run.raise_alone()
    run.refuse()
    jax.distributed.shutdown()
    run.say("done")


if __name__ == "__main__":
    main()
