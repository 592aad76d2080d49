"""Measures Dataloader over 100 000 small arrays in batches of 256, against its peers.

Each library runs in a process of its own, several times in turn, so that a change of
the machine's speed meets all alike; the best run of each counts. Peers are measured
where an interpreter that has them is named: `--loadax PYTHON --grain PYTHON`. All make
batches of shape (256, 8), without workers.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys

COMMON = """
import time
import numpy as np
items = [np.arange(n, n + 8, dtype=np.int32) for n in range({num})]
def measure(make):
    best = 1e9
    for _ in range(3):
        batches = make()
        began = time.perf_counter()
        rows = sum(len(batch) for batch in batches)
        best = min(best, time.perf_counter() - began)
        assert rows >= {num} - 256, rows
    print("SECONDS", best)
"""

PROGRAMS = {
    "roxxel-loader": """
from roxxel_loader import Dataloader, SimpleDataset
measure(lambda: Dataloader(SimpleDataset(items), 256))
""",
    "roxxel-loader, 2 workers": """
from roxxel_loader import Dataloader, SimpleDataset
measure(lambda: Dataloader(SimpleDataset(items), 256, workers=2))
""",
    "loadax": """
from loadax import Batcher, InMemoryDataset, NaiveDataloader
from loadax.strategy import FixedBatchStrategy
batcher = Batcher(lambda batch: np.stack(batch))
measure(lambda: NaiveDataloader(
    InMemoryDataset(items), batcher, FixedBatchStrategy(256)))
""",
    "grain": """
import grain
measure(lambda: grain.MapDataset.source(items).batch(256))
""",
}


def run(interpreter: str, program: str, num_items: int) -> float:
    """Return the seconds that a program says its best pass took."""
    done = subprocess.run(
        [interpreter, "-c", COMMON.format(num=num_items) + program],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{interpreter}: {done.stderr.strip()[-2000:]}")
    return float(done.stdout.split("SECONDS ")[1])


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--loadax", help="an interpreter that has loadax 0.2.1")
    parser.add_argument("--grain", help="an interpreter that has grain")
    options = parser.parse_args(arguments)
    interpreters = {
        "roxxel-loader": sys.executable,
        "roxxel-loader, 2 workers": sys.executable,
        "loadax": options.loadax,
        "grain": options.grain,
    }
    known = {name: path for name, path in interpreters.items() if path}
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, python "
        f"{platform.python_version()}; {options.items} items, batches of 256, "
        f"{options.runs} runs"
    )
    seconds: dict[str, list[float]] = {name: [] for name in known}
    for _ in range(options.runs):
        for name, interpreter in known.items():
            taken_s = run(interpreter, PROGRAMS[name], options.items)
            seconds[name].append(taken_s)
    ours_s = min(seconds["roxxel-loader"])
    for name, taken in seconds.items():
        print(
            f"{name}: {options.items / min(taken) / 1e6:.2f} million items/s, "
            f"{min(taken) / ours_s:.2f} times the time of roxxel-loader"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
