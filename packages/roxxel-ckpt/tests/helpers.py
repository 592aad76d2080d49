"""A small model with every kind of state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from roxxel_ckpt import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Net(nnx.Module):
    """Shared parameters, batch norm, dropout and a list of blocks."""

    def __init__(self, width: int, rngs: nnx.Rngs, *, depth: int = 2) -> None:
        self.embed = nnx.Linear(4, width, rngs=rngs)
        self.tied = self.embed
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.blocks = nnx.List(
            [nnx.Linear(width, width, rngs=rngs) for _ in range(depth)]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `(batch, 4)` to `(batch, width)`."""
        x = self.dropout(self.norm(self.embed(x) + self.tied(x)))
        for block in self.blocks:
            x = x + block(x)
        return x


# One object, so that all optimizers share what is compiled for one of them.
TRANSFORM = optax.MultiSteps(
    optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(optax.cosine_decay_schedule(1e-2, 100)),
    ),
    2,
).gradient_transformation()


def make(
    seed: int = 0, width: int = 8, depth: int = 2
) -> tuple[Net, nnx.Optimizer[Any]]:
    """Return a fresh model; clipping, AdamW on a schedule, accumulation over two."""
    model = Net(width, nnx.Rngs(seed, dropout=seed + 1), depth=depth)
    return model, nnx.Optimizer(model, TRANSFORM, wrt=nnx.Param)


@nnx.jit
def _train_step(model: Net, optimizer: nnx.Optimizer[Any], x: jax.Array) -> jax.Array:
    def loss_of(model: Net) -> jax.Array:
        return jnp.mean(jnp.square(model(x) - 1))

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def train(model: Net, optimizer: nnx.Optimizer[Any], steps: range) -> list[float]:
    """Train on batches that depend on the step alone; return the losses."""
    losses: list[float] = []
    for step in steps:
        x = np.random.default_rng(step).normal(size=(16, 4)).astype(np.float32)
        losses.append(float(_train_step(model, optimizer, jnp.asarray(x))))
    return losses


def leaves(model: Any, optimizer: Any = None) -> dict[str, Any]:
    """Return every leaf by the name that checkpoints give it."""
    roots = {"model": model} | ({} if optimizer is None else {"optimizer": optimizer})
    state = nnx.to_pure_dict(nnx.state(roots))
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
    }


def content(model: Any, optimizer: Any = None) -> dict[str, tuple[str, bytes]]:
    """Return dtype and bytes of every leaf, to compare bit for bit."""
    found: dict[str, tuple[str, bytes]] = {}
    for name, leaf in leaves(model, optimizer).items():
        dtype = str(getattr(leaf, "dtype", type(leaf)))
        data = jax.random.key_data(leaf) if dtype.startswith("key<") else leaf
        found[name] = dtype, np.asarray(data).tobytes()
    return found


def few(seed: int = 0) -> nnx.Dict[Any]:
    """Return a state of two arrays, for tests of what happens around the arrays."""
    numbers = np.random.default_rng(seed).normal(size=(64, 8)).astype(np.float32)
    return nnx.Dict(
        weights=nnx.Param(jax.device_put(numbers)),
        seed=nnx.Variable(np.int64(seed)),
    )


def checkpointer(path: Path, seed: int = 0, **options: Any) -> Checkpointer:
    """Return a checkpointer of a small, fresh state."""
    return Checkpointer(path, few(seed), **options)


def save_all(checkpointer: Checkpointer, *steps: int, **options: Any) -> None:
    """Save some steps, each complete before the next."""
    for step in steps:
        assert checkpointer.save(step, **options)
        checkpointer.wait()


def another(folder: Path, seed: int = 0) -> Checkpointer:
    """Return a checkpointer that is of another program for those of the folder."""
    alias = folder.with_name(f"{folder.name}-alias")
    if not alias.is_symlink():
        alias.symlink_to(folder)
    return checkpointer(alias, seed)


def names(folder: Path) -> list[str]:
    """Return what is in a folder of checkpoints beside the manifest, sorted."""
    found = {path.name for path in folder.iterdir()}
    return sorted(found - {"manifest.json"})


def flip(path: Path, byte: int = 0, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(data)


def largest_file(directory: Path) -> Path:
    """Return the file with most bytes below a directory."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


def edit_json(path: Path, edit: Callable[[Any], Any]) -> None:
    """Rewrite a JSON file."""
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
