"""Trains on corpora of which one process reads a damaged copy.

    damaged.py COPY,COPY... RUN [TOKENS]

Process i reads copy i of the corpus. TOKENS, such as `tokens:[0,256)`, are withdrawn.
"""

import sys
from pathlib import Path

import optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_train.distributed import initialize

PHASES = (6, 8, 17), (6, 4, 33)


class Model(nnx.Module):
    def __init__(self):
        self.embed = nnx.Embed(64, 8, rngs=nnx.Rngs(0))
        self.out = nnx.Linear(8, 64, rngs=nnx.Rngs(1))

    def __call__(self, tokens):
        return self.out(self.embed(tokens))


def loss_fn(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    count = mask.sum()
    return (losses * mask).sum() / count, {"loss_weight": count}


def curriculum_of(corpus, *withdrawn):
    phases = [Phase(*phase) for phase in PHASES]
    return Curriculum(corpus, phases, without={"self": withdrawn})


if __name__ == "__main__":
    initialize()
    import jax

    copies, run, *withdrawn = sys.argv[1:]
    folder = copies.split(",")[jax.process_index()]
    model = Model()
    Trainer(
        model,
        nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param),
        curriculum_of(Roxxel(Path(folder) / "web_*.rox"), *withdrawn),
        loss_fn,
        run,
        log_every=1,
        checkpoint_every=2,
        fields=("tokens", "loss_mask"),
        check="blocks",
    ).run()
