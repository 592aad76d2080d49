"""Measures the memory and CPU time of a restore, against bare Orbax.

A state in the shapes of GPT-2 (124 million parameters) with Adam's moments is saved by
Orbax (its defaults, no digests) and by `Checkpointer`. Each restore runs in a fresh
process, in two ways: into shapes on a device, and into uncommitted arrays. The peak is
the resident memory beyond the result. The goal is at most 0.5 GB.

    python tests-integration/benchmarks/ckpt_restore.py --layers 12
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from roxxel_ckpt import Checkpointer

WAYS = ("orbax", "roxxel")


def shapes(layers: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a GPT-2 by the names of its parameters."""
    found: dict[str, tuple[int, ...]] = {
        "embed": (66 * width, width),
        "positions": (1024, width),
    }
    for n in range(layers):
        found |= {
            f"{n}/qkv": (width, 3 * width),
            f"{n}/out": (width, width),
            f"{n}/up": (width, 4 * width),
            f"{n}/down": (4 * width, width),
            f"{n}/norm": (width,),
        }
    return found


def state_of(layers: int, width: int) -> dict[str, jax.Array]:
    """Return parameters and moments of random float32."""
    random = np.random.default_rng(0)
    return {
        f"{part}/{name}": jnp.asarray(random.random(shape, np.float32))
        for part in ("params", "mu", "nu")
        for name, shape in shapes(layers, width).items()
    }


def restore(folder: Path, way: str, kind: str, layers: int, width: int) -> None:
    """Restore in this process, and print its cost as JSON."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    sharding = device if kind == "device" else None
    like: Any = {
        f"{part}/{name}": jax.ShapeDtypeStruct(shape, np.float32, sharding=sharding)
        for part in ("params", "mu", "nu")
        for name, shape in shapes(layers, width).items()
    }
    jnp.ones(3).block_until_ready()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    cpu, began = time.process_time(), time.perf_counter()
    if way == "roxxel":
        found = Checkpointer(folder / way).load(like=like)
    else:
        options: Any = {"sharding": device, "restore_type": jax.Array}
        arguments = jax.tree.map(lambda _: ocp.ArrayRestoreArgs(**options), like)
        found = ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).restore(
            folder / way,
            args=ocp.args.PyTreeRestore(item=like, restore_args=arguments),
        )
    jax.block_until_ready(found)
    took = time.perf_counter() - began, time.process_time() - cpu
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(found))
    print(json.dumps([*took, (resident("VmHWM") - before - size) / 1e9]))


def resident(field: str) -> int:
    """Return a memory figure of this process, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the benchmark; return for each way the gigabytes needed beyond its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--restore", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    size = options.layers, options.width
    if options.restore:
        folder, way, kind = options.restore
        restore(Path(folder), way, kind, *size)
        return {}
    print(f"{platform.platform()}, {os.cpu_count()} cores, jax {jax.__version__}")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        state = state_of(*size)
        num_bytes = sum(leaf.nbytes for leaf in state.values())
        print(f"{num_bytes / 1e9:.2f} GB in {len(state)} leaves")
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(
            Path(folder) / "orbax", args=ocp.args.PyTreeSave(state)
        )
        with Checkpointer(Path(folder) / "roxxel") as saving:
            saving.save(1, state=state)
        del state
        for kind in ("device", "none"):
            for way in WAYS if kind == "device" else ("roxxel",):
                command = [sys.executable, __file__, "--restore", folder, way, kind]
                command += ["--layers", str(size[0]), "--width", str(size[1])]
                lines = subprocess.check_output(command, text=True).splitlines()
                seconds, cpu_s, beyond = json.loads(lines[-1])
                print(
                    f"{way:6} into {kind:6} {seconds:.2f} s, {cpu_s:.2f} s CPU, "
                    f"{beyond:.2f} GB beyond the result"
                )
                found[f"{way} {kind}"] = beyond
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
