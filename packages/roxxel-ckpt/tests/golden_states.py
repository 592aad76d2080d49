"""The states of the golden checkpoints, written in `tests/golden/` by version 0.1.0.

`python -m golden_states FOLDER` writes them by the installed roxxel-ckpt; a process index
and a port after the folder write the share of one of two processes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from collections.abc import Callable


class Model(nnx.Module):
    """Every kind of leaf: a mesh array, bfloat16, keys, counts, numpy, empty."""

    def __init__(self, offset: int, put: Callable[[np.ndarray[Any, Any]], jax.Array]):
        numbers = np.arange(32.0, dtype=np.float32).reshape(8, 4) + offset
        self.weights = nnx.Param(put(numbers))
        self.half = nnx.Param(jnp.arange(3.0, dtype=jnp.bfloat16) + offset)
        self.count = nnx.Variable(np.int64(offset))
        self.table = nnx.Variable(np.arange(3, dtype=np.uint16) + offset)
        self.number = nnx.Variable(float(offset))
        self.empty = nnx.Variable(jnp.zeros((0, 2)))
        self.rngs = nnx.Rngs(offset)


def on_one_device(numbers: np.ndarray[Any, Any]) -> jax.Array:
    """Return an array on the default device."""
    return jnp.asarray(numbers)


def on_all_devices(numbers: np.ndarray[Any, Any]) -> jax.Array:
    """Return an array whose rows are split over all devices of all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(
        numbers.shape, sharding, lambda index: numbers[index]
    )


def write(folder: str, put: Callable[[np.ndarray[Any, Any]], jax.Array]) -> None:
    """Write the steps 1 and 2."""
    from roxxel_ckpt import Checkpointer

    for step in (1, 2):
        with Checkpointer(folder, Model(step, put)) as saving:
            assert saving.save(step, {"loss": 1.0 / step}, {"step": step})


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write(sys.argv[1], on_one_device)
    else:
        jax.distributed.initialize(
            f"127.0.0.1:{sys.argv[3]}",
            num_processes=2,
            process_id=int(sys.argv[2]),
        )
        write(sys.argv[1], on_all_devices)
        jax.distributed.shutdown()
