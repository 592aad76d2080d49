"""Measures how long importing each package takes, against importing its dependencies.

Every import is timed in fresh interpreters, in turns. The time of an interpreter that
imports nothing is subtracted. The files are in the page cache.

    python tests-integration/benchmarks/startup.py
    python tests-integration/benchmarks/startup.py --rounds 20 roxxel_format numpy
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODULES = (
    *("numpy", "roxxel_format", "roxxel_curriculum"),
    *("jax", "roxxel_loader"),
    *("flax.nnx", "orbax.checkpoint", "roxxel_ckpt"),
    *("optax", "roxxel_train"),
    "roxxel",
)


def main(arguments: Sequence[str] | None = None) -> Mapping[str, float]:
    """Print and return the median time of each import, in seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("modules", nargs="*", default=MODULES)
    options = parser.parse_args(arguments)
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


def start(program: str) -> float:
    """Return the seconds from starting Python with a program to its end."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
