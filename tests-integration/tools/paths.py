"""Counts the modules whose functions run for a batch, a save, a start or a command.

    python tests-integration/tools/paths.py

prints each trip as `trips.py` counts it, and its modules in the order of their first
calls. Each action runs once before, so that nothing is loaded, compiled or opened for
the first time. The commands `ls`, `report` and `replay`, which is refused, ask the
folder of a small run.

A start is counted in two parts. The first is `load_config` and `make_trainer`, which
read the config, the corpora, the model's module and, at a second start, the newest
checkpoint. The second is a resume: `Trainer.run` restores the state and logs the start.
What follows, compilation and steps, is counted in neither.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import optax
from flax import nnx
from roxxel.cli import main as command
from roxxel.config import load_config, make_trainer
from roxxel_ckpt import Checkpointer
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_format._read import line
from roxxel_loader import device_stream
from roxxel_train._run.session import Session

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket
from tools.trips import Calls, Trip

PREFETCH = 2
MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx

def make():
    model = nnx.Embed(64, 4, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    return model, optimizer, lambda model, batch: jnp.square(model(batch)).mean()
"""
CONFIG = """
model = "paths_model:make"
save_path = "run"
sources = { self = "corpus.rox" }
phases = [{ steps = 3, batch_size = 2, seq_len = 8 }]
trainer = { checkpoint_every = 1 }
"""


def main() -> dict[str, Trip]:
    """Print and return the trips."""
    calls = Calls()
    with tempfile.TemporaryDirectory() as folder, calls.watched():
        paths = {
            "a batch": batch(calls, Path(folder)),
            **saved_and_restored(calls, Path(folder) / "checkpoints", ""),
            **starts(calls, Path(folder) / "begun"),
            **commands(calls, Path(folder) / "asked"),
        }
        with running_bucket(Path(folder)):
            # A process that has saved to a URL remembers it.
            url = f"s3://data/{Path(folder).name}"
            paths |= saved_and_restored(calls, url, " in a bucket")
    print(f"Python {sys.version.split()[0]}, JAX {jax.__version__}")
    for name, trip in paths.items():
        print(f"{name}: {trip}")
        print(*(f"  {module}" for module in trip.modules), sep="\n")
    return paths


def batch(calls: Calls, folder: Path) -> Trip:
    """Return the trip of one batch of a stream that is under way.

    The clock stands: a reader looks every 10 ms whether its files have changed, which
    is no part of a batch, but happens in every batch of a busy machine.
    """
    Roxxel(folder / "tokens_*.rox").write([range(1000)] * 40, vocab_size=1000)
    phases = [Phase(steps=40, batch_size=8, seq_len=129)]
    sampler = Curriculum(Roxxel(folder / "tokens_*.rox"), phases).sampler(seed=0)
    with (
        mock.patch.object(line, "time", SimpleNamespace(monotonic=lambda: 0.0)),
        device_stream(sampler, 0, 40, prefetch=PREFETCH) as stream,
    ):
        for _ in range(5):
            next(stream)
        with calls.recorded() as trip:
            # The first of these requests the batch that the last of them delivers.
            for _ in range(1 + PREFETCH):
                next(stream)
    return trip


def declared(folder: Path) -> Path:
    """Return the config of a run of three steps; its corpus and model lie beside."""
    folder.mkdir()
    Roxxel(folder / "corpus.rox").write([range(40)] * 40, vocab_size=64)
    (folder / "paths_model.py").write_text(MODEL)
    config = folder / "run.toml"
    config.write_text(CONFIG)
    return config


def starts(calls: Calls, folder: Path) -> dict[str, Trip]:
    """Return the trips of a start and of a second start, each the second time."""
    config = declared(folder)
    found: dict[str, Trip] = {}
    restore = Session._restore  # pyright: ignore[reportPrivateUsage] - up to a step

    def recorded(session: Session) -> None:
        with calls.recorded() as found["a resume"]:
            restore(session)

    with contextlib.redirect_stderr(io.StringIO()):
        make_trainer(load_config(config))
        with calls.recorded() as found["a TOML file to a Trainer"]:
            trainer = make_trainer(load_config(config))
        trainer.run(until=2)
        make_trainer(load_config(config))
        with calls.recorded() as found["a second start"]:
            trainer = make_trainer(load_config(config))
        with mock.patch.object(Session, "_restore", recorded):
            trainer.run()
    return found


def commands(calls: Calls, folder: Path) -> dict[str, Trip]:
    """Return the trips of commands that ask a run of three steps, the second time."""
    config, run = declared(folder), str(folder / "run")
    refused = ["replay", run, "--without", "self:39"]
    words = {"ls": ["ls", run], "report": ["report", run], "a refused replay": refused}
    found: dict[str, Trip] = {}
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        command(["train", str(config)])
        for name, each in words.items():
            command(each)
            with calls.recorded() as trip:
                command(each)
            found[name] = trip
    return found


def saved_and_restored(calls: Calls, folder: str | Path, where: str) -> dict[str, Trip]:
    """Return the trips of a second save and of a second restore."""
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    with Checkpointer(folder, model, optimizer) as checkpointer:
        checkpointer.save(1)
        checkpointer.wait()
        checkpointer.restore()
        with calls.recorded() as saved:
            checkpointer.save(2)
            checkpointer.wait()
        with calls.recorded() as restored:
            checkpointer.restore()
    return {f"a save{where}": saved, f"a restore{where}": restored}


if __name__ == "__main__":
    main()
