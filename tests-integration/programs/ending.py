"""Trains on two devices, over the processes that the environment names, with accidents.

    ending.py DATA RUN [WHAT@READ:PROCESS ...] [NAME=VALUE:PROCESS ...]

`WHAT` happens in one process, when it reads its `READ`-th batch: "error", "kill",
"sigterm", "save", "sleep", "gil" or "nan"; "slow" delays every batch from there on.
`NAME=VALUE` gives the trainer another argument in one process, or in all without one.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from drill import SEED, Model
from flax import nnx
from roxxel import Curriculum, NonFiniteError, Phase, Preempted, Roxxel, Trainer
from roxxel_train.distributed import initialize

STEPS = 120
TINY = 2e-2
"""Delay of every batch, so that a request is made before the run is over."""


def loss_fn(model, batch):
    """Return the mean cross-entropy, and NaN where a batch was spoilt."""
    tokens = jnp.abs(batch)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    return jnp.where((batch < 0).any(), jnp.nan, losses.mean())


class Accidents(Roxxel):
    """A corpus in which reading a batch has effects."""

    def __init__(self, path, effects):
        super().__init__(path)
        self.effects = effects
        self.num_reads = 0
        self.delay_s = TINY

    def read(self, starts, length, dtype=None, out=None):
        rows = super().read(starts, length, dtype, out)
        self.num_reads += 1
        for what, at in self.effects:
            if at == self.num_reads:
                self.happen(what, rows)
        time.sleep(self.delay_s)
        return rows

    def happen(self, what, rows):
        if what == "error":
            raise OSError("the disk is gone")
        if what == "nan":
            rows[0, 0] = -1
        elif what == "slow":
            self.delay_s = 0.2
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        elif what == "save":
            trainer.save()
        elif what == "sleep":
            time.sleep(1000)
        elif what == "gil":
            ctypes.PyDLL(None).sleep(60)
        else:
            raise ValueError(what)


if __name__ == "__main__":
    initialize()
    data, run, *arguments = sys.argv[1:]
    effects, options = [], {}
    for argument in arguments:
        text, _, process = argument.partition(":")
        if process and int(process) != jax.process_index():
            continue
        if "=" in text:
            name, _, value = text.partition("=")
            options[name] = float(value) if "." in value else int(value)
        else:
            what, _, at = text.partition("@")
            effects.append((what, int(at)))
    rows = options.pop("rows", 4)
    model = Model(0.1, nnx.Rngs(0))
    trainer = Trainer(
        model,
        nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param),
        Curriculum(
            Accidents(Path(data) / "web_*.rox", effects), [Phase(STEPS, rows, 17)]
        ),
        loss_fn,
        run,
        **{"checkpoint_every": 1000, "log_every": 1, "seed": SEED, **options},
    )
    try:
        trainer.run()
    except (NonFiniteError, Preempted, ValueError) as error:
        # Errors that all processes raise alike are the user's to catch.
        sys.stderr.write(f"caught {type(error).__name__}: {error}\n")
        raise
