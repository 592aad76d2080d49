"""Trains a small model whose corpus and run are in a bucket, to be killed anywhere.

    bucket_run.py CORPUS RUN STEPS

The program runs as one of the processes that the environment names. It writes a byte to
its standard output after all imports.
"""

import os
import sys

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_train.distributed import initialize

VOCAB_SIZE = 97


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCAB_SIZE, 16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(16, VOCAB_SIZE, rngs=rngs)

    def __call__(self, tokens):
        return self.out(self.dropout(self.embed(tokens)))


def loss_fn(model, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    )
    return {"loss": losses.mean(), "largest": jnp.max(losses)}


def train(corpus, run, steps):
    initialize()
    model = Model(nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param),
        Curriculum(Roxxel(corpus), [Phase(steps, 8, 33)]),
        loss_fn,
        run,
        eval_fn=lambda state: {"updates": state.step},
        eval_every=5,
        checkpoint_every=2,
        log_every=1,
        seed=3,
        timeout=600,
    ).run()
    assert jax.process_count() == int(os.environ["JAX_NUM_PROCESSES"])


if __name__ == "__main__":
    os.write(1, b".")
    train(sys.argv[1], sys.argv[2], int(sys.argv[3]))
