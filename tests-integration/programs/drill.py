"""Small runs that are stopped by accidents, one run after the other.

    drill.py DATA FOLDER=PART,PART,... FOLDER=... [--process INDEX COUNT PORT]

Parts of a run are `blend`, `phases`, `dropout` and `accumulation`, and an accident
`SIGKILL@STEP.ROW`, `SIGTERM@STEP.ROW` or `OSError@STEP.ROW`. The accident happens when
the tokens of this row in the batch of this step are read, in the process that reads
them.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer

STEPS = 24
SEED = 3


class Model(nnx.Module):
    def __init__(self, dropout: float, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(97, 16, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.hidden = nnx.Linear(16, 16, rngs=rngs)
        self.out = nnx.Linear(16, 97, rngs=rngs)

    def __call__(self, tokens):
        x = self.dropout(self.embed(tokens))
        return self.out(x + nnx.relu(self.hidden(x)))


def checksum(tokens, xp=jnp):
    """Return the sum over rows of 32 bits that depend on every token and its column.

    The result has two halves, because sums and means of some 16-bit numbers are exact
    in float32, for any split of the rows into parts.
    """

    def mix(values):
        values = (values ^ (values >> 15)) * xp.uint32(0xC2B2AE3D)
        return values ^ (values >> 13)

    place = xp.arange(tokens.shape[1], dtype=xp.uint32) * xp.uint32(0x85EBCA77)
    mixed = mix((tokens.astype(xp.uint32) * xp.uint32(0x9E3779B1)) ^ place)
    rows = mix(mixed.sum(axis=1, dtype=xp.uint32))
    halves = {"data_low": rows & 0xFFFF, "data_high": rows >> 16}
    return {name: half.astype(xp.float32).sum() for name, half in halves.items()}


def loss_fn(model, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    )
    aux = {"worst": losses.max(), "row_loss": losses.mean(-1), **checksum(batch)}
    return losses.mean(), aux


def norm(model):
    """Return the norm of the parameters; JAX would compile 30 programs for it."""
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    return float(np.sqrt(sum(np.square(np.asarray(leaf)).sum() for leaf in leaves)))


class Fragile(Roxxel):
    """A corpus that causes an accident when one window is read."""

    happens = None
    at = None
    seconds_a_read = 0.0

    def read(self, starts, *arguments, **named):
        if self.happens is not None and self.at in np.asarray(starts):
            if self.happens == "OSError":
                raise OSError(f"the disk cannot read token {self.at}")
            os.kill(os.getpid(), signal.Signals[self.happens])
            # JAX looks once a second whether it was asked to stop.
            self.seconds_a_read = 0.25 if jax.process_count() > 1 else 0.0
        time.sleep(self.seconds_a_read)
        return super().read(starts, *arguments, **named)


def curriculum_of(data: Path, parts: set[str]) -> Curriculum:
    web, code = Fragile(data / "web_*.rox"), Fragile(data / "code_*.rox")
    blended = "blend" in parts
    first = Phase(STEPS, 16, 33, {"self": 0.7, "code": 0.3} if blended else None)
    if "phases" in parts:
        weights = {"self": 0.5, "code": 0.5} if blended else None
        phases = [
            Phase(STEPS // 2, first.batch_size, first.seq_len, first.weights),
            Phase(STEPS - STEPS // 2, 8, 65, weights),
        ]
    else:
        phases = [first]

    def declared():
        return Curriculum(web, phases, {"code": code} if blended else None)

    for part in parts:
        if "@" in part:
            happens, at = part.split("@")
            step, row = map(int, at.split("."))
            window = declared().sampler(SEED).locate(step, row)
            disk = {"self": web, "code": code}[window.source]
            disk.happens, disk.at = happens, window.start
    return declared()  # a curriculum reads copies of its corpora as they are now


def train(data: Path, run: Path, parts: set[str]) -> None:
    model = Model(0.2 if "dropout" in parts else 0.0, nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 5, STEPS)
    tx = optax.inject_hyperparams(optax.adamw)(learning_rate=schedule)
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    trainer = Trainer(
        model,
        optimizer,
        curriculum_of(data, parts),
        loss_fn,
        run,
        eval_fn=lambda state: {"norm": norm(state.model)},
        eval_every=7,
        checkpoint_every=5,
        log_every=1,
        seed=SEED,
        grad_accum_steps=2 if "accumulation" in parts else 1,
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


def write(data: Path) -> None:
    """Write the two corpora, unless they exist."""
    for name, seed, num_documents in (("web", 1, 400), ("code", 2, 120)):
        random = np.random.default_rng(seed)
        Roxxel(data / f"{name}_*.rox").write(
            (
                random.integers(1, 97, random.integers(5, 200))
                for _ in range(num_documents)
            ),
            separator=0,
            vocab_size=97,
        )


if __name__ == "__main__":
    # A shell has programs in the background ignore Ctrl-C, and this may be one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--process", nargs=3, type=int, metavar="NUMBER")
    options = parser.parse_args()
    if options.process:
        index, count, port = options.process
        # By default JAX detects only after minutes that another process has ended.
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            count,
            index,
            heartbeat_timeout_seconds=60,
            shutdown_timeout_seconds=60,
        )
    if jax.process_index() == 0:
        write(options.data)
    for run in options.runs:
        folder, _, parts = run.partition("=")
        try:
            train(options.data, Path(folder), set(parts.split(",")))
        except OSError as error:
            if jax.process_count() > 1:
                raise
            print(error, file=sys.stderr)
