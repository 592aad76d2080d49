"""Measures whether memory and threads grow over 20 000 tiny steps.

The run logs every 10 steps and saves every 500. Evaluations measure resident memory and
the number of threads. Pools and caches fill in the first 2 000 steps; any later growth
is a leak. After the run, the program lists the threads and processes that remain.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import resource
import sys
import tempfile
import threading
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer

if TYPE_CHECKING:
    from roxxel import ModelState

LOOKS = 20


def resident_mb() -> float:
    """Return the resident memory of this process, if the system reports it."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0.0
    return int(pages) * resource.getpagesize() / 1e6


def child_processes() -> set[int]:
    """Return the child processes of this process, if the system reports them."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(number) for path in lists for number in path.read_text().split()}


def train(steps: int, log_every: int, checkpoint_every: int, folder: Path) -> list[Any]:
    """Train; return step, resident memory and threads at regular intervals."""
    corpus = Roxxel(folder / "corpus_*.rox")
    random = np.random.default_rng(0)
    corpus.write((random.integers(0, 64, 500) for _ in range(200)), vocab_size=64)
    model = nnx.Embed(64, 8, rngs=nnx.Rngs(0))
    found: list[Any] = []

    def look(state: ModelState) -> None:
        gc.collect()
        step = int(state.step[...])
        found.append((step, resident_mb(), threading.active_count()))

    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(corpus, [Phase(steps, 4, 9)]),
        lambda model, batch: (model(batch) ** 2).mean(),
        folder / "run",
        eval_fn=look,
        eval_every=max(1, steps // LOOKS),
        log_every=log_every,
        checkpoint_every=checkpoint_every,
    ).run()
    return found


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Measure and print; return the growth, and what threads and processes remain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--checkpoint-every", type=int, default=500)
    options = parser.parse_args(arguments)
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, "
        f"python {platform.python_version()}, jax {jax.__version__}; "
        f"{options.steps} steps, rows every {options.log_every}, "
        f"checkpoints every {options.checkpoint_every}"
    )
    threads, processes = set(threading.enumerate()), child_processes()
    with (
        tempfile.TemporaryDirectory() as folder,
        Path(os.devnull).open("w") as nowhere,
        redirect_stderr(nowhere),
    ):
        looks = train(
            options.steps, options.log_every, options.checkpoint_every, Path(folder)
        )
    left = [x.name for x in threading.enumerate() if x not in threads]
    for step, resident, num_threads in looks:
        print(f"step {step:6}  {resident:8.1f} MB  {num_threads} threads")
    first = next(look for look in looks if look[0] >= options.steps // 10)
    growth_mb = looks[-1][1] - first[1]
    print(
        f"growth from step {first[0]} to {looks[-1][0]}: {growth_mb:+.1f} MB, "
        f"{looks[-1][2] - first[2]:+d} threads"
    )
    num_processes = len(child_processes() - processes)
    print(f"left after the run: threads {left or 'none'}, {num_processes} processes")
    return {
        "growth_mb": growth_mb,
        "more_threads": looks[-1][2] - first[2],
        "left_threads": len(left),
        "left_processes": num_processes,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
