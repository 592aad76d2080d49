"""Measures how long importing each package takes, and the start of a run.

Every import is timed in fresh interpreters, in turns. The time of an interpreter that
imports nothing is subtracted. The files are in the page cache.

With `--first-step`, `roxxel train` begins a run of two phases, in turns with a program
of bare JAX that jits the same update of the same model for one batch. Both find their
programs in JAX's compilation cache. The time is from the start of the interpreter to
the end of the first update. A busy machine delays both, so compare the CPU time too. It
covers the whole program, which for `roxxel train` includes five more steps, a second
compiled program and a checkpoint.

    python tests-integration/benchmarks/startup.py
    python tests-integration/benchmarks/startup.py --rounds 20 roxxel_format numpy
    python tests-integration/benchmarks/startup.py --first-step
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from roxxel_format import Roxxel
from roxxel_train import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULES = (
    *("numpy", "roxxel_format", "roxxel_curriculum"),
    *("jax", "roxxel_loader"),
    *("flax.nnx", "orbax.checkpoint", "roxxel_ckpt"),
    *("optax", "roxxel_train"),
    "roxxel",
)

CONFIG = """
model = "roxxel.models:llama"
save_path = "{run}"
sources.self = "tokens.rox"
phases = [
    {{ steps = 3, batch_size = 4, seq_len = 64 }},
    {{ steps = 3, batch_size = 2, seq_len = 128 }},
]
[model_args]
vocab_size = 256
width = 64
num_layers = 2
num_heads = 4
num_kv_heads = 4
hidden = 128
context = 128
warmup = 1
"""

BARE = """
import time
import jax, numpy as np
from flax import nnx
from roxxel.models import llama
from roxxel_train import RunFolder
jax.config.update("jax_compilation_cache_dir", "bare-cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
model, optimizer, loss_fn = llama(
    total_steps=6, vocab_size=256, width=64, num_layers=2, num_heads=4,
    num_kv_heads=4, hidden=128, context=128, warmup=1,
)
graphdef, state = nnx.split((model, optimizer))
@jax.jit
def update(state, batch):
    model, optimizer = nnx.merge(graphdef, state)
    loss, grads = nnx.value_and_grad(lambda m: loss_fn(m, batch), has_aux=True)(model)
    optimizer.update(model, grads)
    return nnx.state((model, optimizer)), loss
batch = np.random.default_rng(0).integers(0, 256, (4, 64), dtype=np.int32)
jax.block_until_ready(update(state, batch))
print(time.time())
"""


def main(arguments: Sequence[str] | None = None) -> Mapping[str, float]:
    """Print and return the median time of each import, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--first-step", action="store_true")
    parser.add_argument("modules", nargs="*", default=MODULES)
    options = parser.parse_args(arguments)
    if options.first_step:
        return first_steps(options.rounds)
    modules: Sequence[str] = options.modules
    print(
        f"{platform.platform()}, {os.cpu_count()} processors, {options.rounds} rounds"
    )
    print(f"Python {platform.python_version()}; median (fastest to slowest), ms")
    taken: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(options.rounds):
        nothing = start("pass")
        for module in modules:
            taken[module].append(start(f"import {module}") - nothing)
    for module, times in taken.items():
        low, middle, high = (1000 * of(times) for of in (min, statistics.median, max))
        print(f"{module:18} {middle:6.0f}  ({low:.0f} to {high:.0f})")
    return {module: statistics.median(times) for module, times in taken.items()}


def first_steps(rounds: int) -> Mapping[str, float]:
    """Print and return the median ratio of `roxxel train` to bare JAX."""
    wall: dict[str, list[float]] = {"roxxel train": [], "bare JAX": []}
    own: dict[str, list[float]] = {name: [] for name in wall}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "bare.py").write_text(BARE)
        random = np.random.default_rng(0)
        corpus = Roxxel(folder / "tokens.rox")
        corpus.write([random.integers(0, 256, 100_000)], vocab_size=256)
        for number in range(rounds + 1):
            run = folder / f"run{number}"
            (folder / "run.toml").write_text(CONFIG.format(run=run.name))
            trained = begin(folder, "-m", "roxxel", "train", "run.toml")
            row = RunFolder(run).rows()[0][0]
            first_s = datetime.fromisoformat(row["time"]).timestamp()
            bare = begin(folder, "bare.py")
            if number:  # the first round fills the compilation caches
                wall["roxxel train"].append(first_s - trained.began_s)
                wall["bare JAX"].append(float(bare.shown) - bare.began_s)
                own["roxxel train"].append(trained.cpu_s)
                own["bare JAX"].append(bare.cpu_s)
    found: dict[str, float] = {}
    for what, times in (("to the first step", wall), ("CPU, whole program", own)):
        for name, each in times.items():
            low, middle, high = (of(each) for of in (min, statistics.median, max))
            print(f"{what:18} {name:12} {middle:.2f} s ({low:.2f} to {high:.2f})")
        pairs = zip(times["roxxel train"], times["bare JAX"], strict=True)
        found[what] = statistics.median(one / other for one, other in pairs)
        print(f"{what:18} ratio {found[what]:.2f}")
    return found


class Begun(NamedTuple):
    """A program's output, its start time, and its CPU time, in seconds."""

    shown: str
    began_s: float
    cpu_s: float


def begin(folder: Path, *arguments: str) -> Begun:
    """Run Python in a folder with its own compilation cache."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Begun(done.stdout, began_s, cpu_s)


def start(program: str) -> float:
    """Return the seconds from starting Python with a program to its end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
