"""Prints, as JSON, what a model and a run compute on meshes with an axis `context`."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel import Checkpointer, Roxxel, Trainer, open_run
from roxxel.cli import main
from roxxel.config import load_config, make_trainer
from roxxel.models import Llama, LlamaConfig, next_token_loss

if TYPE_CHECKING:
    from collections.abc import Callable

# On a CPU, the compiler merges what the backward pass computes again with what the
# forward pass has computed, unless this pass is left out; on accelerators it does not.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 "
    f"{os.environ.get('XLA_FLAGS', '')} --xla_disable_hlo_passes=cse_barrier_expander"
)

CONFIG = LlamaConfig(
    vocab_size=62,
    width=16,
    hidden=24,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    context=64,
    dtype="float32",
    # Large initial weights, so that every path changes the loss visibly.
    init_std=0.3,
)
MESHES: dict[str, dict[str, int]] = {
    "alone": {"data": 1},
    "fsdp": {"fsdp": 2, "context": 2},
    "eight": {"data": 1, "context": 8},
    "tensor too": {"data": 2, "context": 2, "tensor": 2},
}


IN_BFLOAT16 = {"alone", "fsdp", "tensor too"}


def mesh_of(axes: dict[str, int]) -> Mesh:
    shape = tuple(axes.values())
    devices = np.array(jax.devices()[: int(np.prod(shape))])
    return Mesh(devices.reshape(shape), tuple(axes))


def batch_of(seed: int) -> dict[str, Any]:
    """Return two rows of 65 tokens, of documents that cross the bounds of devices."""
    random = np.random.default_rng(seed)
    shape = (2, 65)
    return {
        "tokens": random.integers(0, 62, shape).astype(np.int32),
        "segment_ids": np.sort(random.integers(0, 6, shape)).astype(np.int32),
        "positions": random.integers(0, 65, shape).astype(np.int32),
        "loss_mask": random.integers(0, 2, shape).astype(np.float32),
    }


def laws() -> dict[str, Any]:
    """Return for each mesh losses, and how far a gradient is from that of one device.

    The first number of each is in float32. The second, for some meshes, is in bfloat16
    and computes the layers again.
    """
    found: dict[str, Any] = {}
    alone: list[Any] = []
    for name, axes in MESHES.items():
        mesh, losses, worst = mesh_of(axes), [], [0.0, 0.0]
        dtypes = ("float32", "bfloat16")[: 2 if name in IN_BFLOAT16 else 1]
        for seed, dtype in enumerate(dtypes):
            config = replace(
                CONFIG,
                dtype=dtype,
                tensor_axis="tensor" if "tensor" in axes else None,
                fsdp_axis="fsdp" if "fsdp" in axes else None,
                remat="full" if seed else "none",
            )
            with jax.set_mesh(mesh):
                model = Llama(config, rngs=nnx.Rngs(seed))
                graph, state = nnx.split(model)

                def loss(state: Any, batch: Any, graph: Any = graph) -> Any:
                    merged = nnx.merge(graph, state)
                    return next_token_loss(merged, batch, z_loss=1e-2, loss_chunk=12)[0]

                rows = NamedSharding(mesh, PartitionSpec(next(iter(axes))))
                batch = jax.device_put(batch_of(seed), rows)
                value, grads = jax.jit(jax.value_and_grad(loss))(state, batch)
            losses.append(float(value))
            leaves = [*map(np.asarray, jax.tree.leaves(grads))]
            if name == "alone":
                alone.append(leaves)
            for one, other in zip(leaves, alone[seed], strict=True):
                differs = float(abs(one - other).max() / abs(other).max())
                worst[seed] = max(worst[seed], differs)
        found[name] = {"losses": losses, "gradients": worst}
    return found


def refusals() -> list[str]:
    """Return what is said of batches and models that cannot be split."""
    found: list[str] = []
    with jax.set_mesh(mesh_of({"data": 2, "context": 4})):
        for columns, options in ((50, {}), (48, {"attention": "cudnn"})):
            config = replace(CONFIG, dtype="bfloat16", **options)
            model = Llama(config, rngs=nnx.Rngs(0))
            try:
                model(jnp.zeros((2, columns), jnp.int32))
            except ValueError as error:
                found.append(str(error))
    return found


PROJECT = """
model = "roxxel.models:llama"
primary = "web"

[sources]
web = "web_*.rox"
code = { path = "code.rox", policy = "repeat" }

[[phases]]
steps = 2
batch_size = 16
seq_len = 33
weights = { web = 0.5, code = 0.5 }

[[phases]]
steps = 3
batch_size = 2
seq_len = 129
weights = { web = 0.5, code = 0.5 }

[model_args]
preset = "tiny"
vocab_size = 258
width = 16
hidden = 32
num_layers = 1
num_heads = 2
num_kv_heads = 2
warmup = 0
ema = 0.9
loss_chunk = 24

[trainer]
fields = ["tokens", "segment_ids", "positions"]
grad_accum_steps = 2
log_every = 1
checkpoint_every = 1
max_to_keep = 9
eval_every = 1
skip_spikes = { window = 8 }

[eval.long]
sources = { self = "code.rox" }
phases = [{ steps = 1, batch_size = 1, seq_len = 129 }]
"""
"""A run with all that a trainer computes, whose last phase has one row at a time."""

BY_COLUMNS = {"data": 1, "context": 8}


def write(folder: Path) -> None:
    """Write the corpora of `PROJECT`."""
    random = np.random.default_rng(0)
    for name in ("web_*.rox", "code.rox"):
        sizes = random.integers(5, 200, 60)
        codes = (random.integers(32, 127, size, np.uint8) for size in sizes)
        texts = (each.tobytes().decode() for each in codes)
        Roxxel(folder / name).write(texts, tokenizer="bytes")


def trainer(
    folder: Path, name: str, axes: dict[str, int], preset: str = "data-parallel"
) -> Trainer:
    """Return the trainer of a run on as many devices as its mesh has."""
    sizes = ", ".join(f"{axis} = {size}" for axis, size in axes.items())
    mesh = f'[mesh]\npreset = "{preset}"\naxes = {{ {sizes} }}\n'
    file = folder / f"{name}.toml"
    tensor = 'tensor_axis = "tensor"\n' if "tensor" in axes else ""
    text = PROJECT.replace("[trainer]", f"{tensor}\n[trainer]")
    file.write_text(f'save_path = "{name}"\n{text}\n{mesh}')
    devices = jax.devices
    # A config takes all devices.
    jax.devices = lambda: devices()[: math.prod(axes.values())]
    try:
        return make_trainer(load_config(file))
    finally:
        jax.devices = devices


def killed(folder: Path, step: str) -> None:
    """Train, and end by SIGKILL where the state after `step` would be saved."""
    save = Checkpointer.save

    def save_or_die(self: Checkpointer, at: int, *given: Any, **named: Any) -> Any:
        if at == int(step):
            os.kill(os.getpid(), signal.SIGKILL)
        return save(self, at, *given, **named)

    Checkpointer.save = save_or_die
    trainer(folder, "broken", BY_COLUMNS).run()


def runs(folder: Path) -> None:
    """Train on one device, on the mesh, and on another mesh in every start."""
    write(folder)
    trainer(folder, "alone", {"data": 1}).run()
    trainer(folder, "whole", BY_COLUMNS).run()
    trainer(folder, "moved", {"data": 2, "context": 2}, "fsdp").run(until=3)
    trainer(folder, "moved", {"data": 1, "context": 2, "tensor": 2}).run()


def commands(folder: Path) -> list[int]:
    """Return how the commands end that train a run again or read its model."""
    whole = str(folder / "whole")
    read = open_run(whole).sampler().locate(3, 0)
    document = f"{read.source}:{read.documents[0]}"
    return [
        main(["verify", whole, "--steps", "1:5", "--trust"]),
        main(["replay", whole, "--without", document, "--step", "0", "--trust"]),
        main(["sample", whole, "--prompt", "The", "--max-tokens", "8"]),
    ]


if __name__ == "__main__":
    parts: dict[str, Callable[..., Any]] = {
        "laws": laws,
        "refusals": refusals,
        "killed": killed,
        "runs": runs,
        "commands": commands,
    }
    name, *given = sys.argv[1:]
    print(json.dumps(parts[name](*map(Path, given[:1]), *given[1:])))
