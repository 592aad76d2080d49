"""Prints, as JSON, what a model and a run compute on meshes with an axis `context`.

    python tests-integration/programs/context_axis.py memory

prints the bytes that a device needs for the preset `small` and a row of 131 072 tokens,
beside model and optimizer, with 1, 2, 4 and 8 devices, as the compiler plans them.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel.models import Llama, LlamaConfig, llama, next_token_loss

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
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    context=64,
    dtype="float32",
    # Large initial weights, so that every path changes the loss visibly.
    init_std=0.3,
)
LONG = 1 << 17
MESHES: dict[str, dict[str, int]] = {
    "alone": {"data": 1},
    "two": {"data": 1, "context": 2},
    "rows too": {"data": 2, "context": 4},
    "eight": {"data": 1, "context": 8},
    "tensor too": {"data": 2, "context": 2, "tensor": 2},
}


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

    The first number of each is in float32, the second in bfloat16.
    """
    found: dict[str, Any] = {}
    alone: list[Any] = []
    for name, axes in MESHES.items():
        mesh, losses, worst = mesh_of(axes), [], [0.0, 0.0]
        is_split = name == "tensor too"
        for seed, dtype in enumerate(("float32", "bfloat16")):
            config = replace(
                CONFIG,
                dtype=dtype,
                tensor_axis="tensor" if is_split else None,
                remat="full" if seed else "none",
            )
            with jax.set_mesh(mesh):
                model = Llama(config, rngs=nnx.Rngs(seed))
                graph, state = nnx.split(model)

                def loss(state: Any, batch: Any, graph: Any = graph) -> Any:
                    merged = nnx.merge(graph, state)
                    return next_token_loss(merged, batch, z_loss=1e-2, loss_chunk=12)[0]

                rows = NamedSharding(mesh, PartitionSpec("data"))
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
            config = replace(CONFIG, num_layers=1, dtype="bfloat16", **options)
            model = Llama(config, rngs=nnx.Rngs(0))
            try:
                model(jnp.zeros((2, columns), jnp.int32))
            except ValueError as error:
                found.append(str(error))
    return found


def memory() -> dict[str, list[float]]:
    """Return what a gradient keeps and gathers on a device with 1, 2, 4 and 8 of them.

    The one is in bytes, the other in numbers.
    """
    meshes = (mesh_of({"data": 1, "context": ways}) for ways in (1, 2, 4, 8))
    kept, gathered = zip(*map(planned, meshes), strict=True)
    return {"kept": [*kept], "gathered": [*gathered]}


def planned(mesh: Mesh) -> tuple[float, float]:
    """Return what the compiler plans for a row of 131 072 tokens."""
    config = LlamaConfig.small(context=LONG)
    whole = NamedSharding(mesh, PartitionSpec())
    with jax.set_mesh(mesh):
        graph, state = nnx.split(
            nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0)))
        )
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), state
        )
        batch = jax.ShapeDtypeStruct((1, LONG + 1), jnp.int32, sharding=whole)

        def loss(state: Any, batch: Any) -> Any:
            return next_token_loss(nnx.merge(graph, state), batch, loss_chunk=4096)[0]

        program = jax.jit(jax.grad(loss)).lower(shapes, batch).compile()
    shapes = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather\(", program.as_text())
    gathered = sum(math.prod(map(int, shape.split(","))) for shape in shapes)
    return program.memory_analysis().temp_size_in_bytes, gathered


def runs(folder: Path) -> dict[str, Any]:
    """Return the rows of an unbroken run, and of one that stops after every step."""
    random = np.random.default_rng(0)
    sizes = random.integers(5, 200, 60)
    corpus = Roxxel(folder / "c_*.rox")
    corpus.write((random.integers(1, 64, size) for size in sizes), separator=0)
    phases = [Phase(3, batch_size=16, seq_len=33), Phase(3, batch_size=4, seq_len=129)]
    keys = {"preset": "tiny", "vocab_size": 64, "width": 16, "hidden": 32}
    keys |= {"num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "warmup": 0}

    def trainer(name: str, axes: dict[str, int]) -> Trainer:
        return Trainer(
            lambda: llama(total_steps=6, **keys)[:2],
            curriculum=Curriculum(corpus, phases),
            loss_fn=next_token_loss,
            save_path=folder / name,
            mesh=mesh_of(axes),
            fields=["tokens", "segment_ids", "positions"],
            grad_accum_steps=2,
            log_every=1,
            model_sharding="fsdp",
        )

    axes = {"data": 2, "context": 4}
    trainer("alone", {"data": 1}).run()
    trainer("whole", axes).run()
    for step in range(1, 7):
        trainer("broken", axes).run(until=step)
    found: dict[str, Any] = {}
    for name in ("alone", "whole", "broken"):
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
        found[name] = [[row["step"], row["loss"], row["digest"]] for row in rows]
    return found


if __name__ == "__main__":
    parts = {
        "laws": laws,
        "refusals": refusals,
        "memory": memory,
        "runs": lambda: runs(Path(sys.argv[2])),
    }
    print(json.dumps(parts[sys.argv[1]]()))
