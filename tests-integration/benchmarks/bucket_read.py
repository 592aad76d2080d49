"""Reads the batches of a run from a bucket with latency: Roxxel and other loaders.

A server on this machine responds to every request after `--latency-ms`. A program of
each loader reads the batches of a run whose steps take `--step-ms`, first from step 0
and then from 90 % of the run, with an empty cache each time. For each, the report says:

- `first`: seconds from the first call to the first batch;
- `waiting`: share of the time after the first 20 steps that the loop waits for batches;
- `bytes`: bytes of objects that were fetched, over the bytes of the batches;
- `disk`: bytes on the disk at the end;
- `private`: memory of the program at the end that is not backed by files, with JAX.

`blocks` is Roxxel with `check="blocks"`. `cached` is Roxxel with a cache that is empty
at first; its third row begins with the whole corpus in the cache.

`disk` is Roxxel reading from a disk, without the server. For `ready`, all batches are
on the device before the loop begins. Its waiting time is what the loop counts even
without any wait, because after each pause the interpreter needs some time to take a
batch.

Server and loader share the cores of this machine, so the figures include the CPU time
of the server.

    python tests-integration/benchmarks/bucket_read.py               # a quick look
    python tests-integration/benchmarks/bucket_read.py --mib 512 --steps 600 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from roxxel_format import Roxxel

sys.path.append(str(Path(__file__).parents[1]))
from buckets import running_bucket, set_faults, stats

PEERS = Path(__file__).with_name("peers")
OWN = ("roxxel", "blocks", "cached", "disk", "ready")
LOADERS = (*OWN, "streaming", "litdata")
SHAPES = ("16x1025", "1x32769")
DOCUMENT_BYTES = 100_000
WARM_UP = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--shard-kib", type=int, default=512)
    parser.add_argument("--shapes", nargs="+", default=SHAPES)
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, default=OWN)
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--step-ms", type=float, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_bucket(Path(folder)) as port:
        for shape in options.shapes:
            measure(options, shape, Path(folder), port)


def measure(options: argparse.Namespace, shape: str, folder: Path, port: int) -> None:
    rows, seq_len = map(int, shape.split("x"))
    job = {
        "data": str(folder / "data"),
        "cache": str(folder / "cache"),
        "num_documents": (options.mib << 20) // DOCUMENT_BYTES,
        "shard_bytes": options.shard_kib << 10,
        "rows": rows,
        "seq_len": seq_len,
        "start": 0,
        "steps": options.steps,
        "step_s": options.step_ms / 1000,
    }
    num_steps = (options.mib << 20) // (2 * rows * seq_len)
    set_faults(port)
    for loader in options.loaders:
        shutil.rmtree(folder / "data")
        (folder / "data").mkdir()
        job["loader"] = loader
        call(loader, {"do": "write"} | job)
        for start in (0, int(0.9 * num_steps)):
            steps = min(options.steps, num_steps - start - 1)
            found = [
                one(options, loader, job | {"start": start, "steps": steps}, port)
                for _ in range(options.rounds)
            ]
            report(f"{shape} {loader} from step {start}", found)
        if loader == "cached":
            again = job | {"steps": min(options.steps, num_steps - 1)}
            found = [
                one(options, loader, again, port, is_full=True)
                for _ in range(options.rounds)
            ]
            report(f"{shape} {loader} from step 0, cache full", found)


def one(
    options: argparse.Namespace,
    loader: str,
    job: dict[str, Any],
    port: int,
    *,
    is_full: bool = False,
) -> dict[str, float]:
    cache = Path(job["cache"])
    if cache.exists():
        shutil.rmtree(cache)
    cache.mkdir()
    if is_full:
        set_faults(port)
        fill(cache)
    set_faults(port, latency_s=options.latency_ms / 1000)
    printed = call(loader, {"do": "read"} | job)
    found = json.loads(printed.splitlines()[-1])
    waits: list[float] = found["waits"]
    later = waits[WARM_UP:]
    used = 2 * job["rows"] * job["seq_len"] * len(waits)
    return {
        "first s": waits[0],
        "waiting %": 100 * sum(later) / (sum(later) + len(later) * job["step_s"]),
        "bytes": stats(port)["bytes"] / used,
        "disk MB": sum(
            path.stat().st_size for path in cache.rglob("*") if path.is_file()
        )
        / 1e6,
        "private MB": found["private"] / 1e6,
    }


def fill(cache: Path) -> None:
    with Roxxel("s3://data/web_*.rox", cache=cache) as corpus:
        corpus.read([0], 1)
        while (status := corpus.cache_status()) and status.state == "copying":
            time.sleep(0.05)
    assert status is not None
    assert status.state == "complete"


def call(loader: str, given: dict[str, Any]) -> str:
    is_own = loader in OWN
    script = PEERS / f"bucket_{'roxxel' if is_own else loader}.py"
    with_uv = ["uv", "run", "--quiet", "--no-project", "--script"]
    start = [sys.executable] if is_own else with_uv
    done = subprocess.run(
        [*start, str(script), json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=1200,
        check=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "1"},
    )
    return done.stdout


def report(what: str, found: list[dict[str, float]]) -> None:
    figures: list[str] = []
    for name in found[0]:
        low, *_, high = values = sorted(each[name] for each in [*found, *found])
        middle = statistics.median(values)
        figures.append(f"{name} {middle:.3g} ({low:.3g} to {high:.3g})")
    print(f"{what}: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
