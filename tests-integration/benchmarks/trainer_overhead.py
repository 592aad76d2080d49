"""Measures Trainer.run against a hand-written loop of a jitted, donated step.

Both train the same small model on the same batches; for the hand-written loop, they are
already in memory. Both compute the same scalars, and run at most two updates ahead. The
device is one CPU device with a step of about ten milliseconds. XLA is limited to one
core, because a run on an accelerator also leaves the cores of the host free.

- overhead: time from the end of the first update to the end of the last, with a metrics
  row every 10 steps, divided by the same time of the hand-written loop, which logs
  nothing;
- loss by source: time of the same run with a loss that also returns `row_loss`, divided
  by the time without `row_loss`. Both compute the digest of every batch;
- checkpoints: time that a checkpoint adds to the trainer, divided by the time that a
  save with bare asynchronous Orbax adds to the hand-written loop. Both are differences
  of two runs, so only many checkpoints exceed the noise: `--checkpoint-every 50`;
- own thread: CPU time of the loop's thread per step, minus the hand-written loop's, and
  per metrics row. The first is from runs without rows; the second is the difference to
  runs with a row at every step. Both use `row_loss`;
- nothing queued: share of the time in which all dispatched updates were done, by JAX's
  profiler. Also the share in which the device was idle, which includes the time between
  two queued updates;
- phase change: wall time of the first step of a phase, divided by the median of the
  phase.

A flag keeps XLA from using the kernels of YNNPACK on CPUs. Each program would build
these kernels at its first run, in about 11 ms, even if it was compiled before. Runs of
both loops alternate. `--rounds 9 --steps 1100 --checkpoint-every 50` gives the
published figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import sys
import tempfile
from collections import deque
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

# XLA takes the size of its thread pool from NPROC; the flag alone leaves it all cores.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=1 "
    "--xla_cpu_experimental_ynn_fusion_type=",
)

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel_train import Logger, RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH_SIZE, SEQ_LEN, VOCABULARY = 8, 129, 256
IN_FLIGHT = 2
UPDATE = ("PjitFunction(update)", "PjitFunction(jit(update))")
EXECUTE = "ThunkExecutor::Execute"
"""Names by which JAX's trace knows the call of the update and the run of a program."""
WARM_STEPS = 20
OWN_WIDTH = 64


class Model(nnx.Module):
    """Predicts a token from the one before; its width determines the time of a step."""

    def __init__(self, width: int) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(VOCABULARY, 64, rngs=rngs)
        self.hidden = nnx.Linear(64, width, rngs=rngs)
        self.out = nnx.Linear(width, VOCABULARY, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.hidden(self.embed(tokens))))


def loss_fn(model: Model, batch: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of the next token."""
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()


def loss_of_rows(model: Model, batch: jax.Array) -> tuple[jax.Array, Any]:
    """Return the same loss, and the mean loss of each row."""
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    )
    return losses.mean(), {"row_loss": losses.mean(-1)}


def make(width: int) -> tuple[Model, nnx.Optimizer[Model]]:
    """Return a fresh model and its optimizer."""
    model = Model(width)
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


class ByHand:
    """The loop that somebody would write for speed alone.

    `own_ms` is the CPU time of its thread per step of the last run.
    """

    def __init__(self, width: int) -> None:
        graphdef, state = nnx.split(make(width))

        def update(state: Any, batch: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
            model, optimizer = nnx.merge(graphdef, state)
            loss, grads = nnx.value_and_grad(loss_fn)(model, batch)
            optimizer.update(model, grads)
            scalars = {"loss": loss, "grad_norm": optax.tree.norm(grads)}
            return nnx.to_pure_dict(nnx.state((model, optimizer))), scalars

        self._state = nnx.to_pure_dict(state)
        self._update = jax.jit(update, donate_argnums=0)
        self.own_ms = 0.0

    def run(
        self, batches: list[jax.Array], every: int = 0, folder: Path | None = None
    ) -> float:
        """Return the seconds from the end of the first update to that of the last."""
        manager = None
        if folder is not None:
            options = ocp.CheckpointManagerOptions(max_to_keep=3)
            manager = ocp.CheckpointManager(folder, options=options)
        waiting: deque[jax.Array] = deque()
        state, began, began_own = self._state, 0.0, 0.0
        for step, batch in enumerate(batches, 1):
            state, scalars = self._update(state, batch)
            waiting.append(scalars["loss"])
            if step == 1:
                scalars["loss"].block_until_ready()
                began, began_own = perf_counter(), thread_time()
            if len(waiting) > IN_FLIGHT:
                waiting.popleft().block_until_ready()
            if manager is not None and step % every == 0:
                manager.save(step, args=ocp.args.StandardSave(state))
        jax.block_until_ready(state)
        seconds = perf_counter() - began
        self.own_ms = 1e3 * (thread_time() - began_own) / max(1, len(batches) - 1)
        if manager is not None:
            manager.close()
        self._state = state
        return seconds


class Clocked(Logger):
    """Reads the CPU clock of the loop's thread, which reports every step."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.at_s: list[float] = []

    def progress(self, step: int, total_steps: int, loss: float | None = None) -> None:
        """Move the bar, and read the clock."""
        self.at_s.append(thread_time())
        super().progress(step, total_steps, loss)

    @property
    def own_ms(self) -> float:
        """CPU time of the loop's thread per step."""
        return 1e3 * (self.at_s[-1] - self.at_s[0]) / (len(self.at_s) - 1)


@dataclass(frozen=True)
class Setting:
    """The settings that all runs of the trainer share."""

    corpus: Roxxel
    width: int
    folder: Path

    def train(
        self,
        phases: list[Phase],
        log_every: int,
        loss: Callable[[Model, jax.Array], Any] = loss_fn,
        make_log: Callable[[Path], Logger] = Logger,
        **options: Any,
    ) -> tuple[Path, list[float]]:
        """Train; return the run's folder and when its rows were made, in seconds."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            Trainer(
                *make(self.width),
                Curriculum(self.corpus, phases),
                loss,
                folder,
                log_every=log_every,
                logger=make_log(folder),
                **options,
            ).run()
        rows = RunFolder(folder).rows()[0]
        # A row's update is finished when it is made, and the next but one is not yet.
        return folder, [
            datetime.fromisoformat(row["time"]).timestamp()
            for row in rows
            if row["kind"] == "train"
        ]

    def seconds(
        self,
        steps: int,
        every: int,
        loss: Callable[[Model, jax.Array], Any] = loss_fn,
    ) -> float:
        """Return the seconds from the end of the first update to that of the last."""
        phase = Phase(steps, BATCH_SIZE, SEQ_LEN)
        _, times = self.train([phase], 10, loss, checkpoint_every=every)
        return times[-1] - times[0]

    def own_ms(self, steps: int, log_every: int) -> float:
        """Return the CPU time of the loop's thread per step."""
        clocks: list[Clocked] = []

        def make_log(folder: Path) -> Logger:
            clocks.append(Clocked(folder))
            return clocks[0]

        phase = Phase(steps, BATCH_SIZE, SEQ_LEN)
        self.train([phase], log_every, loss_of_rows, make_log)
        return clocks[0].own_ms


def width_for(step_ms: float, batch: jax.Array) -> int:
    """Return the width of a model whose step takes about this long."""
    width = 256
    for _ in range(4):
        by_hand = ByHand(width)
        by_hand.run([batch] * WARM_STEPS)
        runs = [by_hand.run([batch] * (WARM_STEPS + 1)) for _ in range(3)]
        taken_ms = 1e3 * min(runs) / WARM_STEPS
        width = max(8, round(width * step_ms / taken_ms / 8) * 8)
    return width


def idle_shares(trace: Path) -> tuple[float, float]:
    """Return two shares of the time of a trace, from its first program to its last.

    In the first share nothing was queued: all dispatched programs were done. In the
    second, no program ran; it includes the time from one program to the next, and on a
    shared core also other work.
    """
    [path] = trace.rglob("*.trace.json.gz")
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))[
        "traceEvents"
    ]

    spans = sorted(
        (event["ts"], event["ts"] + event["dur"], event["tid"], event["name"])
        for event in events
        if event.get("ph") == "X"
        and (event["name"] in UPDATE or event["name"] == EXECUTE)
    )
    dispatches: list[tuple[float, float]] = []
    runs: list[tuple[float, float]] = []
    hosts = {thread for *_, thread, name in spans if name in UPDATE}
    for begin, end, thread, name in spans:
        known = dispatches if name in UPDATE else runs
        if name not in UPDATE and thread in hosts:
            continue  # the call, told twice
        if known and begin < known[-1][1]:
            # A loop of the program, or what one thread began and another goes on with.
            known[-1] = known[-1][0], max(end, known[-1][1])
        else:
            known.append((begin, end))
    # The updates are the longest of all programs: to place a batch takes microseconds.
    runs.sort(key=lambda run: run[0] - run[1])
    runs = sorted(runs[: len(dispatches)])
    if not runs or len(dispatches) != len(runs):
        raise RuntimeError(
            f"{path}: {len(dispatches)} dispatches and {len(runs)} programs run; this "
            "version of JAX names them otherwise"
        )
    empty = idle = 0.0
    # A device runs programs in the order of their dispatch.
    for (_, done), (_, dispatched), (begin, _) in zip(
        runs, dispatches[1:], runs[1:], strict=False
    ):
        empty += max(0.0, dispatched - done)
        idle += max(0.0, begin - done)
    seconds = runs[-1][1] - runs[0][0]
    return empty / seconds, idle / seconds


def spread(values: list[float], unit: str = "") -> str:
    """Return median and range."""
    return (
        f"{statistics.median(values):.4g}{unit} "
        f"({min(values):.4g} to {max(values):.4g})"
    )


def interleaved(
    runs: dict[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Return the results of each, measured one after another in every round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Measure and print; return the medians of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=500, help="updates in a run")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--checkpoint-every", type=int, default=200)
    parser.add_argument("--traced", type=int, default=100, help="updates in a trace")
    options = parser.parse_args(arguments)
    steps, every = options.steps, options.checkpoint_every
    if not 1 <= every < steps:
        parser.error(
            f"argument --checkpoint-every: {every} gives a run of {steps} steps no "
            "save before its end; give a number from 1 to below --steps"
        )
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"python {platform.python_version()}, jax {jax.__version__}; "
        f"{options.rounds} rounds of {steps} steps"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpus = Roxxel(folder / "corpus_*.rox")
        random = np.random.default_rng(0)
        corpus.write(
            (random.integers(0, VOCABULARY, 1000) for _ in range(1000)),
            vocab_size=VOCABULARY,
        )
        sampler = Curriculum(corpus, [Phase(steps, BATCH_SIZE, SEQ_LEN)]).sampler(0)
        batches = [jax.device_put(sampler.batch(step)) for step in range(steps)]
        width = width_for(options.step_ms, batches[0])
        setting, by_hand = Setting(corpus, width, folder), ByHand(width)
        by_hand.run(batches[:WARM_STEPS])
        never = steps + 1
        found = interleaved(
            {
                "hand": lambda: by_hand.run(batches),
                "trainer": lambda: setting.seconds(steps, never),
                "trainer rows": lambda: setting.seconds(steps, never, loss_of_rows),
                "hand saves": lambda: by_hand.run(
                    batches, every, Path(tempfile.mkdtemp(dir=folder))
                ),
                "trainer saves": lambda: setting.seconds(steps, every),
            },
            options.rounds,
        )
        for name, values in found.items():
            print(f"{name:14} {spread(values, ' s')}")
        step_ms = 1e3 * statistics.median(found["hand"]) / (steps - 1)
        print(f"width {width}, a step {step_ms:.2f} ms")

        over = _ratios(found["trainer"], found["hand"])
        print(f"trainer / hand-written loop          {spread(over)}")
        rows = _ratios(found["trainer rows"], found["trainer"])
        print(f"trainer with / without row_loss      {spread(rows)}")
        saves = (steps - 1) // every
        added = _added_ms(found["trainer saves"], found["trainer"], saves)
        added_bare = _added_ms(found["hand saves"], found["hand"], saves)
        ratio = statistics.median(added) / statistics.median(added_bare)
        print(
            f"each of {saves} saves adds {spread(added, ' ms')}, "
            f"of bare Orbax {spread(added_bare, ' ms')}: ratio {ratio:.2f}"
        )

        # The steps may be short: what is measured is not what the device does.
        small, bare = replace(setting, width=OWN_WIDTH), ByHand(OWN_WIDTH)
        bare.run(batches[:WARM_STEPS])

        def own_by_hand() -> float:
            bare.run(batches)
            return bare.own_ms

        own = interleaved(
            {
                "hand": own_by_hand,
                "trainer": lambda: small.own_ms(steps, never),
                "rows": lambda: small.own_ms(steps, 1),
            },
            options.rounds,
        )
        step_over, row_over = (
            [one - other for one, other in zip(own[a], own[b], strict=True)]
            for a, b in (("trainer", "hand"), ("rows", "trainer"))
        )
        print(
            f"own thread: a step {spread(step_over, ' ms')} over that by hand of "
            f"{spread(own['hand'], ' ms')}, a row {spread(row_over, ' ms')}"
        )

        traced = min(options.traced, steps)
        stop = WARM_STEPS + traced
        run, _ = setting.train(
            [Phase(stop + 5, BATCH_SIZE, SEQ_LEN)], 10, profile=(WARM_STEPS, stop)
        )
        with jax.profiler.trace(folder / "trace"):
            by_hand.run(batches[:traced])
        empty, idle = idle_shares(run / "profile")
        empty_by_hand, idle_by_hand = idle_shares(folder / "trace")
        print(
            f"nothing queued: trainer {empty:.2%}, by hand {empty_by_hand:.2%}; "
            f"nothing running: {idle:.2%} and {idle_by_hand:.2%}"
        )

        half = min(150, steps)
        phases = [
            Phase(half, BATCH_SIZE, SEQ_LEN),
            Phase(half, BATCH_SIZE // 2, 2 * SEQ_LEN - 1),
        ]
        changes: list[float] = []
        for _ in range(options.rounds):
            _, times = setting.train(phases, 1)
            took = np.diff(times)[half - 1 :]
            changes.append(float(took[0] / np.median(took[1:])))
        print(f"step at a phase change / usual one   {spread(changes)}")
    return {
        "over": statistics.median(over),
        "rows": statistics.median(rows),
        "checkpoints": ratio,
        "own step": statistics.median(step_over),
        "own row": statistics.median(row_over),
        "nothing queued": empty,
        "phase change": statistics.median(changes),
    }


def _ratios(ones: list[float], others: list[float]) -> list[float]:
    return [one / other for one, other in zip(ones, others, strict=True)]


def _added_ms(ones: list[float], others: list[float], saves: int) -> list[float]:
    """Return the milliseconds that a save adds to a run, one value for each round."""
    pairs = zip(ones, others, strict=True)
    return [1e3 * (one - other) / saves for one, other in pairs]


if __name__ == "__main__":
    main(sys.argv[1:])
