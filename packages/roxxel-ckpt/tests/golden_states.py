"""The states of the golden checkpoints in `tests/golden/`.

`Checkpointer(folder, Model(k, put)).save(k, {"loss": 1 / k}, {"step": k})` wrote step
`k`: in `*_one_process` with `on_one_device`, and in `*_two_processes` with
`on_all_devices` in two processes of two CPU devices each.
"""

from __future__ import annotations

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

    def __init__(
        self, offset: int, put: Callable[[np.ndarray[Any, Any]], jax.Array]
    ) -> None:
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


def on_all_devices(
    numbers: np.ndarray[Any, Any], spec: tuple[str, ...] = ("data",)
) -> jax.Array:
    """Return an array whose rows are split over all devices of all processes."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.make_array_from_callback(
        numbers.shape, sharding, lambda index: numbers[index]
    )
