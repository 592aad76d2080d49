"""Measures how long `Checkpointer.save` blocks its caller, against bare Orbax.

One run compares a save by Orbax's `AsyncCheckpointer` (with its defaults, without
digests), `save` of `Checkpointer`, and `save` with `wait`. The limit is 1.2 times Orbax
plus 50 ms. The run also measures the peak of host memory during a save, and the memory
that repeated saves of a small state leave behind.

    python tests-integration/benchmarks/ckpt_blocking.py --megabytes 1024
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import resource
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from flax import nnx
from roxxel_ckpt import Checkpointer

LEAVES = 16


def state_of(num_bytes: int) -> nnx.Dict[Any]:
    """Return random float32 leaves with about this many bytes in total."""
    keys = jax.random.split(jax.random.key(0), LEAVES)
    size = max(1, num_bytes // 4 // LEAVES)
    leaves = {f"leaf{i}": jax.random.normal(key, (size,)) for i, key in enumerate(keys)}
    jax.block_until_ready(leaves)
    return nnx.Dict({name: nnx.Variable(leaf) for name, leaf in leaves.items()})


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if it is unknown."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


class Peak:
    """Samples resident memory in a thread of its own."""

    def __init__(self) -> None:
        self.num_bytes = resident_bytes()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.num_bytes = max(self.num_bytes, resident_bytes())


def seconds(times: list[float]) -> str:
    """Return median and range of durations as text."""
    return f"{statistics.median(times):8.4f} s  ({min(times):.4f} to {max(times):.4f})"


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the benchmark; return its medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=50, help="for the leak check")
    parser.add_argument("--folder", default=None, help="disk to write to")
    options = parser.parse_args(arguments)
    print(f"{platform.platform()}, {os.cpu_count()} cores, jax {jax.__version__}")
    model = state_of(int(options.megabytes * 1e6))
    variables = list(model.values())
    num_bytes = sum(variable[...].nbytes for variable in variables)
    print(f"{num_bytes / 1e6:.0f} MB in {LEAVES} leaves, {options.rounds} rounds")

    bare: list[float] = []
    blocking: list[float] = []
    totals: list[float] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        saving = Checkpointer(Path(folder) / "roxxel", model, max_to_keep=1)
        saving.save(0)
        saving.wait()
        peak_bytes = 0
        for step in range(1, options.rounds + 1):
            start = time.perf_counter()
            orbax.save(
                Path(folder) / f"orbax-{step}",
                args=ocp.args.PyTreeSave({k: v[...] for k, v in model.items()}),
            )
            bare.append(time.perf_counter() - start)
            orbax.wait_until_finished()
            gc.collect()
            before = resident_bytes()
            with Peak() as peak:
                start = time.perf_counter()
                saving.save(step)
                blocking.append(time.perf_counter() - start)
                saving.wait()
                totals.append(time.perf_counter() - start)
            peak_bytes = max(peak_bytes, peak.num_bytes - before)
        saving.close()
        orbax.close()
    medians = {
        "orbax_s": statistics.median(bare),
        "blocking_s": statistics.median(blocking),
        "total_s": statistics.median(totals),
        "peak_ratio": peak_bytes / num_bytes,
    }
    bound = 1.2 * medians["orbax_s"] + 0.05
    print(f"bare Orbax blocks            {seconds(bare)}")
    print(f"save blocks                  {seconds(blocking)}  bound {bound:.4f} s")
    print(f"save and wait                {seconds(totals)}")
    print(f"host memory beyond the state {medians['peak_ratio']:.2f} times the state")

    small = state_of(1_000_000)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        saving = Checkpointer(folder, small, max_to_keep=1)
        for step in range(5):
            saving.save(step)
        saving.wait()
        gc.collect()
        before, threads = resident_bytes(), threading.active_count()
        for step in range(5, 5 + options.saves):
            saving.save(step)
        saving.wait()
        gc.collect()
        medians["leaked_mb"] = (resident_bytes() - before) / 1e6
        medians["leaked_threads"] = threading.active_count() - threads
        saving.close()
    print(
        f"after {options.saves} saves of 1 MB: "
        f"{medians['leaked_mb']:+.1f} MB resident, "
        f"{medians['leaked_threads']:+.0f} threads"
    )
    return medians


if __name__ == "__main__":
    main(sys.argv[1:])
