"""Trains on two devices, in the processes that the environment names, with accidents.

    ending.py DATA RUN [WHAT@WHERE:PROCESS ...] [NAME=VALUE:PROCESS ...]

`WHAT` happens in one process: "error", "exit", "kill", "sigterm", "save", "sleep",
"hold" or "nan". "hold" waits until the run's log has a line that matches `until`. With
"slow", every later batch is delayed.
`WHERE` is the number of a read of a batch, or one of "before" (the construction of the
trainer), "after" (the construction), "compile", "evaluate", "save" and "restore".

`NAME=VALUE` gives the trainer another argument in one process, or in all processes
without `:PROCESS`. Some names are settings of this program:

- `steps`, `rows`: steps of the run, and rows of a batch;
- `corpus`: name of the corpus in `DATA`;
- `arrays`, `values`: number of additional arrays of the model, and its seed;
- `mib`: size of additional parameters;
- `build`: 1 gives the trainer a function that makes the model;
- `held_s`: time after which a line names the processes for which others wait;
- `until`: the expression for "hold";
- `own`: 1 calls `jax.distributed.initialize` in place of Roxxel's `initialize`;
- `disks`: 1 gives each process a folder of its own.
"""

import contextlib
import os
import re
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
from roxxel_train._together import holders, watcher
from roxxel_train.distributed import initialize

STEPS = 100
TINY = 2e-2
"""Delay of every batch, so that a request is made before the run is over."""

SIGNALS = {"kill": signal.SIGKILL, "sigterm": signal.SIGTERM}


def loss_fn(model, batch):
    """Return the mean cross-entropy; NaN for a batch that an accident has spoilt."""
    tokens = jnp.abs(batch)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    return jnp.where((batch < 0).any(), jnp.nan, losses.mean())


class Accidents:
    """What happens in this process, and where."""

    def __init__(self, effects, log, until):
        self.effects = effects
        self.log, self.until = log, until
        self.delay_s = TINY

    def at(self, where, rows=None):
        for what, place in self.effects:
            if place == str(where):
                self.happen(what, rows)

    def happen(self, what, rows):
        # The benchmark of these programs measures from here on.
        sys.stderr.write(f"{what} at {time.time()}\n")
        sys.stderr.flush()
        if what == "error":
            raise OSError("the disk is gone")
        if what == "exit":
            sys.exit(3)
        elif what == "nan":
            rows[0, 0] = -1
        elif what == "slow":
            self.delay_s = 0.2
        elif what in SIGNALS:
            os.kill(os.getpid(), SIGNALS[what])
        elif what == "save":
            trainer.save()
        elif what == "hold":
            while not (self.log.exists() and self.until.search(self.log.read_text())):
                time.sleep(TINY)
        elif what == "sleep":
            time.sleep(1000)

    def watch_compiler(self):
        """Let the compilation of an update be an accident."""
        compile_ahead = jax.stages.Lowered.compile

        def watched(lowered, *arguments, **options):
            self.at("compile")
            return compile_ahead(lowered, *arguments, **options)

        jax.stages.Lowered.compile = watched

    def watch_checkpoints(self, folder):
        """Let a first file that is written, and one that is read, be an accident."""

        def watch(event, arguments):
            if event == "open" and str(arguments[0]).startswith(str(folder)):
                is_written = arguments[2] & (os.O_WRONLY | os.O_RDWR)
                self.at("save" if is_written else "restore")

        sys.addaudithook(watch)


class Corpus(Roxxel):
    """A corpus in which reading a batch has effects."""

    def __init__(self, path, accidents):
        super().__init__(path)
        self.accidents = accidents
        self.num_reads = 0

    def read(self, starts, length, dtype=None, out=None):
        rows = super().read(starts, length, dtype, out)
        self.num_reads += 1
        self.accidents.at(self.num_reads, rows)
        time.sleep(self.accidents.delay_s)
        return rows


def parsed(value):
    """Return a number where a text is one."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


if __name__ == "__main__":
    data, run, *arguments = sys.argv[1:]
    process = int(os.environ["JAX_PROCESS_ID"])
    effects, options = [], {}
    for argument in arguments:
        text, _, only = argument.partition(":")
        if only and int(only) != process:
            continue
        if "=" in text:
            name, _, value = text.partition("=")
            options[name] = parsed(value)
        else:
            effects.append(tuple(text.split("@")))
    if options.pop("own", 0):
        address = os.environ["JAX_COORDINATOR_ADDRESS"]
        count = os.environ["JAX_NUM_PROCESSES"]
        jax.distributed.initialize(address, int(count), process)
    else:
        initialize()
    if options.pop("disks", 0):
        run = str(Path(run) / str(process))
    if process == 0:
        # The others need this process until they have ended, however busy the machine.
        watcher._LEAVE_S = 20.0
    holders._HELD_S = options.pop("held_s", holders._HELD_S)
    log = Path(run) / "system.log"
    accidents = Accidents(effects, log, re.compile(options.pop("until", "")))
    accidents.at("before")
    num_arrays, seed = options.pop("arrays", 0), options.pop("values", 0)
    num_floats = options.pop("mib", 0) * 2**18

    def build():
        model = Model(0.1, nnx.Rngs(seed))
        if num_floats:
            model.ballast = nnx.Param(jnp.zeros(num_floats))
        model.more = nnx.List([nnx.Param(jnp.zeros(3)) for _ in range(num_arrays)])
        return model, nnx.Optimizer(model, optax.sgd(1e-2), wrt=nnx.Param)

    is_function = options.pop("build", 0)
    objects = (build, None) if is_function else build()
    corpus = Corpus(Path(data) / f"{options.pop('corpus', 'web')}_*.rox", accidents)
    phases = [Phase(options.pop("steps", STEPS), options.pop("rows", 4), 17)]
    try:
        trainer = Trainer(
            *objects,
            Curriculum(corpus, phases),
            loss_fn,
            run,
            lambda _: accidents.at("evaluate"),
            **{"checkpoint_every": 1000, "log_every": 1, "seed": SEED, **options},
        )
        accidents.at("after")
        accidents.watch_compiler()
        accidents.watch_checkpoints(Path(run) / "checkpoints")
        trainer.run()
    except (NonFiniteError, Preempted, ValueError) as error:
        # Errors that all processes raise alike are the user's to catch.
        sys.stderr.write(f"caught {type(error).__name__}: {error}\n")
        raise
