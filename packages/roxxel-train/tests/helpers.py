"""A run small enough for a unit test: real corpus, model, optimizer and curriculum."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_train import TIMING_FIELDS, RunFolder, Trainer
from roxxel_train._step.fed import Fed, deal_rows

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 13


adam = cache(optax.adam)
"""One object for each rate: JAX traces an update anew for an equal one."""


class Tiny(nnx.Module):
    """Embeds, drops out, predicts."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(VOCABULARY, 4, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(4, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.out(self.dropout(self.embed(tokens)))


def loss_fn(model: Any, batch: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()


def masked_loss(model: Any, tokens: Any, mask: Any) -> Any:
    """Return the mean loss of the targets whose mask is 1, and their number."""
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    weight = mask[:, 1:].sum()
    return (losses * mask[:, 1:]).sum() / weight, {"loss_weight": weight}


def by_mask(model: Any, batch: Any) -> Any:
    return masked_loss(model, batch["tokens"], batch["loss_mask"])


def nothing_of(model: Any) -> jax.Array:
    """Return 0, computed from the model: a loss must depend on what it trains."""
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    return 0 * sum((jnp.sum(leaf) for leaf in leaves), start=jnp.zeros(()))


def corpus(folder: Path) -> Roxxel:
    random = np.random.default_rng(0)
    tokens = Roxxel(folder / "data_*.rox")
    tokens.write(
        (random.integers(0, VOCABULARY, 40) for _ in range(50)), vocab_size=VOCABULARY
    )
    return tokens


def pair(seed: int = 0, width: float = 1e-2) -> tuple[Tiny, nnx.Optimizer[Any]]:
    model = Tiny(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, adam(width), wrt=nnx.Param)


def trainer(folder: Path, phases: list[Phase] | None = None, **options: Any) -> Trainer:
    """Return a trainer over 6 steps of 4 x 9 tokens and 4 of 2 x 17, on one device."""
    model, optimizer = options.pop("pair", None) or pair()
    phases = phases or [Phase(6, 4, 9), Phase(4, 2, 17)]
    defaults: dict[str, Any] = {
        "curriculum": Curriculum(corpus(folder), phases),
        "loss_fn": loss_fn,
        "save_path": folder / "run",
        "checkpoint_every": 4,
        "log_every": 3,
        "mesh": mesh_of(1),
    }
    return Trainer(model, optimizer, **(defaults | options))


def fed(batch: Any, parts: int = 1) -> Fed:
    """Return what an update is fed, with every row from the first source."""
    source = np.zeros(len(batch), np.int32)
    return Fed(batch, source, None if parts == 1 else deal_rows(source, parts))


def mesh_of(num_devices: int) -> Mesh:
    """Return a mesh of the first devices along one axis, `"data"`."""
    return Mesh(np.asarray(jax.devices()[:num_devices]), ("data",))


def values(one: Trainer) -> list[bytes]:
    """Return the bytes of every array of model and optimizer."""
    state = nnx.to_pure_dict(nnx.state((one.model, one.optimizer)))
    return [
        np.asarray(
            jax.random.key_data(x)
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
        ).tobytes()
        for x in jax.tree.leaves(state)
    ]


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the run without what depends on the clock."""
    found, num_damaged = RunFolder(folder / "run").rows()
    assert not num_damaged
    return [
        {name: x for name, x in row.items() if name not in TIMING_FIELDS}
        for row in found
    ]
