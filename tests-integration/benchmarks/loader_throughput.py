"""Measures device_stream against the bare loop of gather and make_array_from_callback.

Three figures for each shape of batch, on one CPU device and a corpus of uint16 tokens
in one warm shard:

- throughput: batches of a curriculum as jax.Array, without any other work, as a share
  of the throughput of the bare loop. The bare loop knows the windows in advance: numpy
  gathers them (`sliding_window_view(tokens, T)[starts]`) and casts to int32, and JAX
  makes the arrays;
- CPU time: the stream's on the consumer's thread, divided by the CPU time of `batch`
  and `device_put` by hand, with one source and with five;
- a loop of steps of a few milliseconds, dispatched without blocking: its time, divided
  by the time of the same loop over batches that are already in memory. The two loops
  alternate every 24 steps.

Runs of both alternate, and the medians are compared, so a change of the machine's speed
affects both. `--mib 1024 --runs 31` gives the published figures.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING

# The step is held to one core, as an accelerator leaves them all to the host. XLA takes
# the size of its thread pool from NPROC; the flag alone leaves it as many as cores.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=1",
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.lib.stride_tricks import sliding_window_view
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import Roxxel
from roxxel_loader import device_stream, make_data_parallel_sharding_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from roxxel_curriculum import Sampler

    Step: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]

STEPS_AT_A_TIME = 24

SHAPES = ((16, 1025), (64, 2049), (1, 32769))


class Work:
    """The same windows for both loops: as a curriculum, and as a list of places."""

    def __init__(self, corpus: Roxxel, shape: tuple[int, int], steps: int) -> None:
        self.shape = shape
        self.steps = steps
        self.sampler = Curriculum(corpus, [Phase(steps, *shape)]).sampler(seed=0)
        self.starts = [self.sampler.windows(step).start for step in range(steps)]
        self.tokens = corpus.tokens[:]

    def bare(self, sharding: NamedSharding) -> Iterator[jax.Array]:
        """Yield batches with nothing around the gather and JAX's own call."""
        for starts in self.starts:
            windows = sliding_window_view(self.tokens, self.shape[1])
            batch = windows[starts].astype(np.int32)
            yield jax.make_array_from_callback(self.shape, sharding, batch.__getitem__)

    def streamed(self, sharding: NamedSharding) -> Iterator[jax.Array]:
        """Yield the same batches from device_stream with its default settings."""
        with device_stream(self.sampler, 0, self.steps, sharding) as stream:
            yield from stream


def exhaust(make: Callable[[], Iterator[jax.Array]]) -> float:
    """Return the seconds until the last batch is on the device."""
    began = perf_counter()
    batch = None
    for made in make():
        batch = made
    jax.block_until_ready(batch)
    return perf_counter() - began


def by_hand(sampler: Sampler, steps: range, sharding: NamedSharding) -> float:
    """Return CPU microseconds per step of `batch` and `device_put`."""
    began = process_time()
    for step in steps:
        batch = jax.device_put(sampler.batch(step), sharding)
        batch.block_until_ready()
    return 1e6 * (process_time() - began) / len(steps)


def by_stream(sampler: Sampler, steps: range, sharding: NamedSharding) -> float:
    """Return CPU microseconds per step of the stream, on this thread."""
    began = process_time()
    first, stop = steps.start, steps.stop
    for batch in device_stream(sampler, first, stop, sharding, workers=0):
        batch.block_until_ready()
    return 1e6 * (process_time() - began) / len(steps)


def compare_cpu(
    corpora: list[Roxxel],
    shape: tuple[int, int],
    sharding: NamedSharding,
    steps: int,
    runs: int,
) -> None:
    """Print the CPU times of a stream and of a loop by hand."""
    names = [f"s{number}" for number in range(len(corpora))]
    sampler = Curriculum(
        corpora[0],
        [Phase(steps * (runs + 1), *shape, dict.fromkeys(names, 1))],
        dict(zip(names[1:], corpora[1:], strict=True)),
        policies=dict.fromkeys(names, "repeat"),
        primary=names[0],
    ).sampler(seed=0)
    hand: list[float] = []
    stream: list[float] = []
    for run in range(runs + 1):
        part = range(run * steps, (run + 1) * steps)
        for step in part:
            sampler.batch(step)  # Touch the pages.
        hand.append(by_hand(sampler, part, sharding))
        stream.append(by_stream(sampler, part, sharding))
    one, two = min(hand[1:]), min(stream[1:])
    print(
        f"{shape}, {len(corpora)} sources: batch and device_put {one:.0f} us of CPU, "
        f"stream {two:.0f}, ratio {two / one:.2f} (target: 1.3)"
    )


class Loop:
    """A training loop that continues a few steps at a time, over its own batches."""

    def __init__(
        self, batches: Iterator[jax.Array], step: Step, state: jax.Array
    ) -> None:
        self._batches = batches
        self._step = step
        self._state = state

    def run(self) -> float:
        """Return the seconds of a few steps, each dispatched without waiting for it."""
        began = perf_counter()
        in_flight: list[jax.Array] = []
        for batch in islice(self._batches, STEPS_AT_A_TIME):
            self._state = self._step(self._state, batch)
            in_flight.append(self._state)
            if len(in_flight) > 2:  # no farther ahead than a trainer lets itself get
                in_flight.pop(0).block_until_ready()
        self._state.block_until_ready()
        return perf_counter() - began


def make_step(milliseconds: float) -> tuple[Step, jax.Array]:
    """Return a jitted step that takes about this long, and its first state."""

    @partial(jax.jit, static_argnums=2)
    def step(state: jax.Array, batch: jax.Array, rounds: int) -> jax.Array:
        def once(_: int, value: jax.Array) -> jax.Array:
            return jnp.tanh(value @ value) + 1e-3

        return jax.lax.fori_loop(0, rounds, once, state) + batch[0, 0] * 0.0

    state = jnp.eye(192)
    some = jnp.zeros((1, 1), jnp.int32)
    rounds = 4
    for _ in range(6):
        step(state, some, rounds).block_until_ready()
        began = perf_counter()
        for _ in range(10):
            state = step(state, some, rounds)
        state.block_until_ready()
        taken_ms = (perf_counter() - began) * 100
        rounds = max(1, round(rounds * milliseconds / taken_ms))
    return lambda state, batch: step(state, batch, rounds), state


def compare(
    first: Callable[[], float], second: Callable[[], float], runs: int
) -> tuple[float, float, list[float]]:
    """Return the median of both and the ratio of each interleaved pair."""
    first()
    second()
    pairs = [(first(), second()) for _ in range(runs)]
    ratios = [one / two for one, two in pairs]
    return (
        statistics.median(one for one, _ in pairs),
        statistics.median(two for _, two in pairs),
        ratios,
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=16, help="size of the corpus")
    parser.add_argument("--runs", type=int, default=3, help="interleaved pairs")
    parser.add_argument("--steps", type=int, default=100, help="batches in a run")
    parser.add_argument("--step-ms", type=float, default=5.0, help="0 leaves it out")
    options = parser.parse_args(arguments)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, python "
        f"{platform.python_version()}, jax {jax.__version__}, numpy {np.__version__}; "
        f"corpus {options.mib} MiB, {options.steps} batches, {options.runs} pairs"
    )
    mesh = make_data_parallel_sharding_config().create_device_mesh(jax.devices()[:1])
    sharding = NamedSharding(mesh, PartitionSpec("data", None))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Roxxel(Path(folder) / "corpus.rox")
        generator = np.random.default_rng(1)
        corpus.write(
            generator.integers(0, 50_000, 1 << 19, np.uint16)
            for _ in range(options.mib)
        )
        corpora = [corpus]
        for number in range(4):
            other = Roxxel(Path(folder) / f"other{number}.rox")
            other.write([generator.integers(0, 50_000, 1 << 19, np.uint16)])
            corpora.append(other)
        for shape in SHAPES:
            epoch = int(corpus.num_tokens * 0.9) // (shape[0] * shape[1])
            work = Work(corpus, shape, min(options.steps, epoch))
            for one, two in zip(
                work.bare(sharding), work.streamed(sharding), strict=True
            ):
                np.testing.assert_array_equal(one, two)
            two, one, ratios = compare(
                lambda work=work: exhaust(lambda: work.bare(sharding)),
                lambda work=work: exhaust(lambda: work.streamed(sharding)),
                options.runs,
            )
            million = work.steps * shape[0] * shape[1] / 1e6
            print(
                f"{shape}: bare {million / two:.0f} Mtok/s, stream "
                f"{million / one:.0f} Mtok/s, share {statistics.median(ratios):.2f} "
                f"({_spread(ratios)})"
            )
            for count in (1, 5):
                compare_cpu(corpora[:count], shape, sharding, work.steps, options.runs)
            if options.step_ms:
                pairs = 4 * options.runs
                work = Work(corpus, shape, (pairs + 1) * STEPS_AT_A_TIME)
                step, state = make_step(options.step_ms)
                streamed = Loop(work.streamed(sharding), step, state)
                some = list(islice(work.bare(sharding), 8))
                preloaded = Loop(cycle(some), step, state)
                loop, best, ratios = compare(streamed.run, preloaded.run, pairs)
                over = [100 * (ratio - 1) for ratio in ratios]
                print(
                    f"{shape}: a step of {1e3 * best / STEPS_AT_A_TIME:.2f} ms takes "
                    f"{1e6 * (loop - best) / STEPS_AT_A_TIME:+.0f} us, "
                    f"{statistics.median(over):+.2f} % ({_spread(over)})"
                )


def _spread(values: list[float]) -> str:
    """Return the middle half of some values."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return f"{ordered[quarter]:.2f} to {ordered[-1 - quarter]:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
