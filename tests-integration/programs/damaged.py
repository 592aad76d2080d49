"""Trains on corpora of which one process reads a damaged copy.

    damaged.py COPY,COPY... RUN STEPS [STOP]

Process i reads copy i of the corpus, or the last copy if there are fewer. After step
STOP the last process gets SIGTERM, and every step takes half a second, so the
processes agree to stop before the last step.
"""

import os
import signal
import sys
import time
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


def curriculum_of(corpus, steps):
    """Return the phases up to a step."""
    left, phases = steps, []
    for count, batch_size, seq_len in PHASES:
        phases.append(Phase(min(left, count), batch_size, seq_len))
        left -= phases[-1].steps
        if not left:
            break
    return Curriculum(corpus, phases, longest=33)


if __name__ == "__main__":
    initialize()
    import jax

    copies, run, steps, *stop = sys.argv[1:]
    folders = copies.split(",")
    folder = folders[min(jax.process_index(), len(folders) - 1)]
    model = Model()

    def stops(state):
        is_last = jax.process_index() == jax.process_count() - 1
        if is_last and [str(int(state.step[...]))] == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        if stop and int(state.step[...]) >= int(stop[0]):
            time.sleep(0.5)

    Trainer(
        model,
        nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param),
        curriculum_of(Roxxel(Path(folder) / "web_*.rox"), int(steps)),
        loss_fn,
        run,
        stops,
        eval_every=1,
        log_every=1,
        fields=("tokens", "loss_mask"),
        check="blocks",
        on_damage="mask",
    ).run()
