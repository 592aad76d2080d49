"""Prints what each of eight devices needs and receives for a training step with FSDP.

    python tests-integration/programs/eight_devices.py small 16 1024 none

prints a line of JSON for 16 rows of 1024 targets on each device, as the compiler plans
the step for devices of the CPU: for a preset or `7b`, and what its backward pass
computes again. Nothing is computed, so the machine need not hold the model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import long_rows
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel.models import Llama, LlamaConfig, next_token_loss
from roxxel.recipe.llama_config import llama_config

DEVICES = 8
SEVEN_B = {
    "vocab_size": 32_000,
    "width": 4096,
    "hidden": 11_008,
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 32,
    "tied": False,
}
"""The shape of Llama 7B (Touvron et al., 2023)."""


def config_of(preset: str, length: int, remat: Any) -> LlamaConfig:
    """Return the config of a preset, or that of Llama 7B."""
    if preset == "7b":
        return LlamaConfig(**SEVEN_B, context=length, remat=remat)
    return llama_config(preset, context=length, remat=remat)


def planned(config: LlamaConfig, rows: int, length: int) -> dict[str, Any]:
    """Return what the compiler plans for a device.

    `state` are the bytes of its part of the weights and of AdamW's moments, `kept` the
    bytes beside them, and `sends` how many numbers each kind of collective gives it.
    """
    mesh = Mesh(np.array(jax.devices()[:DEVICES]), ("data",))

    def split(leaf: Any) -> Any:
        fitting = [axis for axis, size in enumerate(leaf.shape) if size % DEVICES == 0]
        if leaf.size < 100_000 or not fitting:
            spec = PartitionSpec()
        else:
            widest = max(fitting, key=lambda axis: leaf.shape[axis])
            spec = PartitionSpec(*(None,) * widest, "data")
        sharding = NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    optimizer = optax.adamw(1e-3)
    with jax.set_mesh(mesh):
        graph, state = nnx.split(
            nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
        )
        weights = jax.tree.map(split, state)
        moments = jax.tree.map(split, jax.eval_shape(optimizer.init, state))
        by_rows = NamedSharding(mesh, PartitionSpec("data"))
        batch = jax.ShapeDtypeStruct(
            (rows * DEVICES, length + 1), jnp.int32, sharding=by_rows
        )

        def loss(weights: Any, batch: Any) -> Any:
            return next_token_loss(nnx.merge(graph, weights), batch)[0]

        def update(weights: Any, moments: Any, batch: Any) -> Any:
            gradients = jax.grad(loss)(weights, batch)
            changes, moments = optimizer.update(gradients, moments, weights)
            return optax.apply_updates(weights, changes), moments

        placed = jax.tree.map(lambda leaf: leaf.sharding, (weights, moments))
        program = jax.jit(update, donate_argnums=(0, 1), out_shardings=placed)
        compiled = program.lower(weights, moments, batch).compile()
    memory = compiled.memory_analysis()
    return {
        "parameters": config.num_parameters,
        "state": memory.argument_size_in_bytes,
        "kept": memory.temp_size_in_bytes,
        **long_rows.costs(compiled.as_text()),
    }


def main(preset: str, rows: str, length: str, remat: str) -> None:
    """Print the plan of one size."""
    config = config_of(preset, int(length), remat)
    print(json.dumps({"preset": preset, **planned(config, int(rows), int(length))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
