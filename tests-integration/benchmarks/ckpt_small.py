"""Measures saves and restores of many small leaves, against Orbax's default.

A state has `--leaves` leaves of 1 KiB. One round saves and restores it with Orbax's
`AsyncCheckpointer` (with its defaults: OCDBT, no digests) and with `Checkpointer`. The
goal is at most Orbax's CPU time, in saves and in restores.

    python tests-integration/benchmarks/ckpt_small.py --leaves 5000
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from roxxel_ckpt import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Callable

LEAF_VALUES = 256


class Times:
    """Seconds of an act, in all rounds: blocked, until its end, and CPU time."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []

    def measure(self, act: Callable[[], Any], wait: Callable[[], Any] = list) -> Any:
        """Time the calls `act()` and `wait()`; return the result of `act()`."""
        cpu, began = time.process_time(), time.perf_counter()
        result = act()
        blocked = time.perf_counter() - began
        wait()
        ended = time.perf_counter() - began
        self.rows.append((blocked, ended, time.process_time() - cpu))
        return result

    @property
    def medians(self) -> tuple[float, float, float]:
        """Seconds blocked, until the end, and of the CPU."""
        blocked, ended, cpu = map(statistics.median, zip(*self.rows, strict=True))
        return blocked, ended, cpu


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Run the benchmark; return the CPU time of Roxxel over that of Orbax."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"{platform.platform()}, {os.cpu_count()} cores, jax {jax.__version__}")
    print(
        f"{options.leaves} leaves of {LEAF_VALUES * 4} bytes, {options.rounds} rounds"
    )
    values = np.random.default_rng(0).random((options.leaves, LEAF_VALUES), np.float32)
    state = {f"leaf{i}": jnp.asarray(each) for i, each in enumerate(values)}
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    wanted = ocp.args.PyTreeRestore(
        item=state,
        restore_args={
            name: ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=device)
            for name in state
        },
    )
    times = {
        (way, act): Times()
        for way in ("orbax", "roxxel")
        for act in ("save", "restore")
    }
    with tempfile.TemporaryDirectory() as folder:
        orbax = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
        saving = Checkpointer(Path(folder) / "roxxel", max_to_keep=1)
        for step in range(options.rounds + 1):
            path = Path(folder) / f"orbax-{step}"
            times["orbax", "save"].measure(
                partial(orbax.save, path, args=ocp.args.PyTreeSave(state)),
                orbax.wait_until_finished,
            )
            times["roxxel", "save"].measure(
                partial(saving.save, step, state=state), saving.wait
            )
            times["orbax", "restore"].measure(partial(orbax.restore, path, args=wanted))
            found = times["roxxel", "restore"].measure(partial(saving.load, like=state))
            if step == 0:  # what is loaded and compiled once does not count
                assert all(bool((found[name] == state[name]).all()) for name in state)
                for each in times.values():
                    each.rows.clear()
        saving.close()
        orbax.close()
    for (way, act), each in times.items():
        blocked, ended, cpu = each.medians
        print(
            f"{way:6} {act:8} blocked {blocked:.3f} s, {ended:.3f} s, {cpu:.3f} s CPU"
        )
    return {
        act: times["roxxel", act].medians[2] / times["orbax", act].medians[2]
        for act in ("save", "restore")
    }


if __name__ == "__main__":
    for act, ratio in main(sys.argv[1:]).items():
        print(f"CPU of a {act}, of Orbax's: {ratio:.2f}")
