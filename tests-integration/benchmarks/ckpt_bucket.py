"""Measures saves and restores of a checkpoint in a bucket, against the same on a disk.

The server runs on this machine, so the figures include its CPU time. For a disk, a
bucket, and a bucket that responds after `--latency-ms`, the report says:

- `blocks`: seconds for which `save` blocks its caller;
- `save`: seconds until the step is committed;
- `restore`: seconds to read it back;
- `requests`: requests of one save.

    python tests-integration/benchmarks/ckpt_bucket.py --megabytes 512 --arrays 8
    python tests-integration/benchmarks/ckpt_bucket.py --megabytes 100 --arrays 400
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
from flax import nnx
from roxxel_ckpt import Checkpointer

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket, set_faults, stats


def state_of(num_bytes: int, num_arrays: int) -> nnx.Dict[Any]:
    """Return random float32 arrays with about this many bytes in total."""
    keys = jax.random.split(jax.random.key(0), num_arrays)
    size = max(1, num_bytes // 4 // num_arrays)
    arrays = {f"a{i}": jax.random.normal(key, (size,)) for i, key in enumerate(keys)}
    jax.block_until_ready(arrays)
    return nnx.Dict({name: nnx.Param(array) for name, array in arrays.items()})


def measure(
    path: str | Path, model: nnx.Dict[Any], port: int, latency_s: float, rounds: int
) -> dict[str, list[float]]:
    """Save and restore the model `rounds` times, after one save that warms up."""
    found: dict[str, list[float]] = {
        name: [] for name in ("blocks", "save", "restore", "requests")
    }
    set_faults(port, latency_s=latency_s)
    with Checkpointer(path, model, max_to_keep=1) as saving:
        saving.save(0)
        saving.wait()
        for step in range(1, rounds + 1):
            set_faults(port, latency_s=latency_s)
            start = time.perf_counter()
            saving.save(step)
            found["blocks"].append(time.perf_counter() - start)
            saving.wait()
            found["save"].append(time.perf_counter() - start)
            found["requests"].append(stats(port)["requests"])
            start = time.perf_counter()
            assert saving.restore() == step
            jax.block_until_ready(nnx.state(model))
            found["restore"].append(time.perf_counter() - start)
    return found


def spread(values: list[float]) -> str:
    """Return median and range as text."""
    middle = statistics.median(values)
    return f"{middle:.3g} ({min(values):.3g} to {max(values):.3g})"


def main(arguments: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    """Run the benchmark; return its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=16)
    parser.add_argument("--arrays", type=int, default=8)
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"{platform.platform()}, {os.cpu_count()} cores, jax {jax.__version__}")
    model = state_of(int(options.megabytes * 1e6), options.arrays)
    print(f"{options.megabytes:.0f} MB in {options.arrays} arrays")
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as home, running_bucket(Path(home)) as port:
        latency_s = options.latency_ms / 1000
        for name, path, delay_s in (
            ("disk", Path(home, "disk"), 0.0),
            ("bucket", "s3://data/run", 0.0),
            (f"bucket, {options.latency_ms:g} ms", "s3://data/far", latency_s),
        ):
            found = measure(path, model, port, delay_s, options.rounds)
            figures[name] = found
            text = ", ".join(f"{what} {spread(found[what])}" for what in found)
            print(f"{name}: {text}", flush=True)
    return figures


if __name__ == "__main__":
    main(sys.argv[1:])
