"""What the programs of the effects share: a small model of bytes, and its loop.

    effect_NAME.py [SEEDS]

The model is a function of its arrays, so one compiled program serves every seed.
"""

import sys

import jax
import numpy as np
import optax
from flax import nnx
from roxxel import Roxxel
from roxxel.models import Llama, LlamaConfig, next_token_loss
from roxxel.quickstart.corpus import VOCAB_SIZE, find_library, read_library

SEEDS = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)


def write_library(num_files):
    """Write sources of the standard library, and held-out ones; return both."""
    library = read_library(find_library())
    train, held_out = Roxxel("library_*.rox"), Roxxel("held_out.rox")
    for corpus, files in ((train, library.train), (held_out, library.held_out)):
        chosen = np.random.default_rng(0).permutation(len(files))[:num_files]
        corpus.write((files[i].content.decode() for i in chosen), tokenizer="bytes")
    return train, held_out


class Learner:
    """Trains models of one shape with AdamW at a constant rate."""

    def __init__(self, rate, width=32, context=512):
        config = LlamaConfig.tiny(
            vocab_size=VOCAB_SIZE,
            width=width,
            hidden=3 * width,
            num_layers=2,
            num_heads=2,
            context=context,
        )
        self._new = lambda seed: Llama(config, rngs=nnx.Rngs(seed))
        self._graph = nnx.graphdef(self._new(0))
        self._optimizer = optax.adamw(rate)
        self._update = jax.jit(self._updated, donate_argnums=(0, 1))
        self._losses = jax.jit(lambda arrays, tokens: self._loss(arrays, tokens)[1])

    def train(self, batches, seed):
        """Return the arrays of a new model after one update for each batch."""
        arrays = nnx.state(self._new(seed))
        moments = self._optimizer.init(arrays)
        for tokens in batches:
            arrays, moments = self._update(arrays, moments, tokens)
        return arrays

    def losses(self, arrays, tokens):
        """Return the mean loss of each row, shape (B,), in nats a byte."""
        return np.asarray(self._losses(arrays, tokens)["row_loss"])

    def _loss(self, arrays, tokens):
        return next_token_loss(nnx.merge(self._graph, arrays), tokens)

    def _updated(self, arrays, moments, tokens):
        gradients = jax.grad(lambda x: self._loss(x, tokens)[0])(arrays)
        changes, moments = self._optimizer.update(gradients, moments, arrays)
        return optax.apply_updates(arrays, changes), moments


def verdict(claim, holds):
    """Print in how many seeds a claim holds."""
    print(f"{claim}: in {sum(holds)} of {len(holds)} seeds")
