"""The program that `test_processes.py` runs twice at the same time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel_ckpt import Checkpointer, CheckpointError


class State(nnx.Module):
    """Something on all devices, something on each process alone, and random keys."""

    def __init__(self, weights: jax.Array) -> None:
        self.weights: nnx.Variable[Any] = nnx.Param(weights)
        self.local: nnx.Variable[Any] = nnx.Variable(jnp.arange(3.0))
        self.rngs = nnx.Rngs(7)


def main() -> None:
    """Save on two processes, restore, damage, fall back, and go on."""
    port, index, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    spread = NamedSharding(mesh, PartitionSpec("data"))
    model = State(
        jax.make_array_from_callback(
            (8, 4), spread, lambda i: np.arange(32.0).reshape(8, 4)[i]
        )
    )
    weights = model.weights
    saving = Checkpointer(folder, model, max_to_keep=2, timeout=60)
    assert saving.restore() == 0
    for step in (1, 2, 3):
        weights.set_value(jax.jit(lambda x: x + 1, out_shardings=spread)(weights[...]))
        assert saving.save(step, {"loss": 1.0 / step}, {"step": step})
    assert saving.save(3) is False
    saving.wait()
    report("saved", folder, index)

    weights.set_value(jax.jit(jnp.zeros_like, out_shardings=spread)(weights[...]))
    model.local.set_value(jnp.zeros(3))
    assert saving.restore() == 3
    assert saving.extra == {"step": 3}
    for shard in weights[...].addressable_shards:
        expected = np.arange(32.0).reshape(8, 4)[shard.index] + 3
        assert (np.asarray(shard.data) == expected).all()
    assert weights[...].sharding == spread
    assert model.local[...].tolist() == [0.0, 1.0, 2.0]
    assert not model.local[...].committed

    sync_global_devices("restored")
    if index == 0:
        (folder / "3" / "state" / "manifest.ocdbt").unlink()
    sync_global_devices("damaged")
    assert saving.peek() == (2, {"step": 2})
    assert saving.restore() == 2
    assert saving.save(3)
    saving.close()

    sync_global_devices("saved again")
    if index == 0:
        (folder / "3" / "digests.json").unlink()
    sync_global_devices("without digests")
    assert saving.restore() == 3

    file = folder.parent / "file"
    if index == 0:
        file.write_text("")
    sync_global_devices("file")
    try:
        Checkpointer(file / "run", model).save(1)
    except CheckpointError as error:
        report(f"refused {type(error).__name__}", folder, index)
    jax.distributed.shutdown()
    report("done", folder, index)


def report(word: str, folder: Path, index: int) -> None:
    """Print a line that the test reads."""
    names = sorted(path.name for path in folder.iterdir()) if index == 0 else []
    print(word, *names, flush=True)  # noqa: T201 - this is a program


if __name__ == "__main__":
    main()
