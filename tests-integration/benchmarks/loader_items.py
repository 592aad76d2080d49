"""Measures Dataloader over 100 000 small arrays in batches of 256, against its peers.

Every library makes the same batches of shape (256, 8), without workers; a digest of the
batches proves that they are the same. A short last batch is left out, because loadax
0.2.1 hangs there. The libraries run in turn, each in its own process, so that a change
of the machine's speed affects all of them. A run takes the best of three passes, and
the result is the median over the runs. With `--peers` the peers are measured too, in
environments that uv creates and keeps. To use existing environments, pass their
interpreters: `--loadax PYTHON --grain PYTHON`. `--items 100000 --runs 5 --peers` gives
    the published figures.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from typing import NamedTuple

COMMON = """
import hashlib
import time
from itertools import islice
import numpy as np
items = [np.arange(n, n + 8, dtype=np.int32) for n in range({num})]
def measure(make):
    digest = hashlib.sha256()
    for batch in islice(make(), {num} // 256):
        assert type(batch) is np.ndarray and batch.dtype == np.int32
        digest.update(repr(batch.shape).encode() + batch.tobytes())
    best = 1e9
    for _ in range(3):
        batches = make()
        began = time.perf_counter()
        num = sum(1 for _ in islice(batches, {num} // 256))
        best = min(best, time.perf_counter() - began)
        assert num == {num} // 256, num
    print("REPORT", best, digest.hexdigest())
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
    "grain, its iterator": """
import grain
measure(lambda: grain.MapDataset.source(items).batch(256).to_iter_dataset())
""",
}

PEERS = {
    "loadax": "loadax==0.2.1",
    "grain": "grain==0.2.18",
    "grain, its iterator": "grain==0.2.18",
}


class Report(NamedTuple):
    """The seconds of a program's best pass, and the digest of its batches."""

    seconds: float
    digest: str


def run(command: list[str], program: str, num_items: int) -> Report:
    """Return the report of a program that `command -c` runs."""
    with tempfile.TemporaryDirectory() as folder:  # no project's settings apply here
        done = subprocess.run(
            [*command, "-c", COMMON.format(num=num_items) + program],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()[-2000:]}")
    seconds, digest = done.stdout.split("REPORT ")[1].split()
    return Report(float(seconds), digest)


def command_of(name: str, options: argparse.Namespace) -> list[str] | None:
    """Return the interpreter for a library; None if the library is not measured."""
    if name not in PEERS:
        return [sys.executable]
    interpreter = options.loadax if name == "loadax" else options.grain
    if interpreter:
        return [interpreter]
    if not options.peers:
        return None
    uv = ["uv", "run", "--quiet", "--no-project", "--python", sys.executable]
    return [*uv, "--with", PEERS[name], "python"]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--peers", action="store_true", help="measure the peers too")
    parser.add_argument("--loadax", help="an interpreter that has loadax 0.2.1")
    parser.add_argument("--grain", help="an interpreter that has grain")
    options = parser.parse_args(arguments)
    found = {name: command_of(name, options) for name in PROGRAMS}
    commands = {name: command for name, command in found.items() if command}
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, python "
        f"{platform.python_version()}; {options.items} items, batches of 256, "
        f"{options.runs} runs"
    )
    reports: dict[str, list[Report]] = {name: [] for name in commands}
    for _ in range(options.runs):
        for name, command in commands.items():
            reports[name].append(run(command, PROGRAMS[name], options.items))
    ours = reports["roxxel-loader"]
    for name, made in reports.items():
        if {report.digest for report in made} != {ours[0].digest}:
            raise RuntimeError(f"{name} makes other batches than roxxel-loader")
        ratios = [
            one.seconds / our.seconds for one, our in zip(made, ours, strict=True)
        ]
        million = options.items // 256 * 256 / 1e6
        print(
            f"{name}: "
            f"{million / statistics.median(one.seconds for one in made):.2f} "
            f"million items/s, {statistics.median(ratios):.2f} times the time of "
            f"roxxel-loader ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    print(f"all made the same batches, of digest {ours[0].digest[:16]}")


if __name__ == "__main__":
    main(sys.argv[1:])
