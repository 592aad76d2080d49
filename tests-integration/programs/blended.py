"""A small run that has everything: two sources, two phases, dropout, accumulation.

Arguments: the folder of the data, the folder of the run, and updates between
checkpoints; and, as one of several processes, its index, their number and a port.
"""

import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(97, 16, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.hidden = nnx.Linear(16, 16, rngs=rngs)
        self.out = nnx.Linear(16, 97, rngs=rngs)

    def __call__(self, tokens):
        x = self.dropout(self.embed(tokens))
        return self.out(x + nnx.relu(self.hidden(x)))


def loss_fn(model, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    )
    return losses.mean(), {"worst": losses.max()}


def corpus(folder: Path, name: str, seed: int, num_documents: int) -> Roxxel:
    random = np.random.default_rng(seed)
    tokens = Roxxel(folder / f"{name}_*.rox")
    tokens.write(
        (random.integers(1, 97, random.integers(5, 200)) for _ in range(num_documents)),
        separator=0,
        vocab_size=97,
    )
    return tokens


def main(data: Path, run: Path, checkpoint_every: int) -> None:
    data.mkdir(exist_ok=True)
    curriculum = Curriculum(
        corpus(data, "web", 1, 300),
        [
            Phase(25, 8, 33, {"self": 0.7, "code": 0.3}),
            Phase(15, 8, 65, {"self": 0.5, "code": 0.5}),
        ],
        mix_streamers={"code": corpus(data, "code", 2, 80)},
    )
    model = Model(nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, 40)
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=schedule)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    trainer = Trainer(
        model,
        optimizer,
        curriculum,
        loss_fn,
        run,
        eval_fn=lambda state: {
            "norm": optax.tree.norm(nnx.state(state.model, nnx.Param))
        },
        eval_every=10,
        checkpoint_every=checkpoint_every,
        log_every=4,
        seed=3,
        grad_accum_steps=2,
    )
    trainer.run()
    if jax.process_index() != 0:
        return
    leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state((model, optimizer))))
    arrays = [
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        for x in leaves
    ]
    np.savez(run / "final.npz", *map(np.asarray, arrays))


if __name__ == "__main__":
    # A shell has programs in the background ignore Ctrl-C, and this may be one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if len(sys.argv) > 4:
        index, count, port = map(int, sys.argv[4:])
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
