"""Measures pre-training on an accelerator: `Trainer` against a loop written by hand.

Decoders of 124 million to 1.3 billion parameters train on a synthetic corpus. Each part
runs in its own processes, so that its peak of memory is its own, and its failure does
not end other parts:

- throughput: tokens/s and MFU of both loops, in turn, and the share of time spent
  waiting for data;
- phase-change: idle time of the device at a phase change and at a save, from the
  profiler's timeline; the longest step at a change, divided by a usual step; the cost
  of an asynchronous save, against the bare copy to the host;
- resume: the losses of a run that was killed with kill -9 and resumed, compared bit by
  bit with those of an unbroken run, with and without XLA's deterministic flags;
- memory: a state that takes a given share of the device's memory is trained, killed
  with kill -9 and resumed; the peaks of both starts;
- compile: the program of a second phase, compiled while the device trains and compiled
  on an idle device.

`--out FILE` writes one JSON file, after every part; `--report FILE...` prints such
files as tables, without running anything. Without `--sizes`, a CPU trains the tiny
size, and an accelerator trains all three sizes. The exit code is 1 if any process
failed. `_flops.py` states the convention of MFU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _pretrain_parts import PARTS, VARIANTS, Plan
from _pretrain_report import failures, markdown

SIZES = ("tiny", "124m", "350m", "1.3b")
ACCELERATOR_SIZES = SIZES[1:]


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that the arguments name; return 1 if any process failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument(
        "--part",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        dest="parts",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="to measure a rate for"
    )
    parser.add_argument(
        "--batch-size", type=int, help="even, in place of the decoder's own"
    )
    parser.add_argument(
        "--limit-s", type=float, default=500.0, help="of a process, then it is killed"
    )
    parser.add_argument(
        "--share", type=float, default=0.6, help="of the memory, for --part memory"
    )
    parser.add_argument(
        "--mem-fraction",
        type=float,
        default=0.95,
        help="of the device's memory that JAX may use, for --part memory",
    )
    parser.add_argument(
        "--resume-variants",
        nargs="+",
        choices=VARIANTS,
        default=list(VARIANTS),
    )
    parser.add_argument("--out", type=Path, help="JSON file of records")
    parser.add_argument(
        "--cache", type=Path, help="keep compiled programs here for the next call"
    )
    parser.add_argument("--scratch", type=Path, help="folder for corpora and runs")
    parser.add_argument(
        "--report", nargs="+", type=Path, metavar="FILE", help="print records and end"
    )
    options = parser.parse_args(arguments)
    if options.report:
        found = [json.loads(path.read_text()) for path in options.report]
        print(markdown(found))
        return 0
    if options.scratch is not None:
        options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        records = measure(options, Path(scratch))
    return 1 if failures(records) else 0


def measure(options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Run the parts; write, print and return their records."""
    plan = Plan(
        cache=(options.cache or scratch / "cache").resolve(),
        seconds=options.seconds,
        limit_s=options.limit_s,
        share=options.share,
        mem_fraction=options.mem_fraction,
        batch_size=options.batch_size,
        variants=tuple(options.resume_variants),
    )
    sizes = options.sizes or _default_sizes(plan, scratch)
    found: dict[str, Any] = {"format": 1, "machine": _machine(), "records": []}
    for size in sizes:
        for part in options.parts:
            print(f"{part}, {size}", file=sys.stderr, flush=True)
            folder = scratch / size / part
            record = PARTS[part](plan, size, folder)
            shutil.rmtree(folder)  # checkpoints of a large state fill a disk
            found["records"].append({"part": part, "size": size, **record})
            if options.out is not None:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(markdown([found]))
    return found["records"]


def _default_sizes(plan: Plan, scratch: Path) -> tuple[str, ...]:
    found = plan.stage("device", "tiny", scratch / "device")
    if "failed" in found:
        raise SystemExit(f"no device to measure: {found['failed']}")
    on_accelerator = found["platform"] in {"gpu", "tpu"}
    return ACCELERATOR_SIZES if on_accelerator else SIZES[:1]


def _machine() -> dict[str, Any]:
    git = shutil.which("git")
    commit = "unknown"
    if git is not None:
        done = subprocess.run(
            [git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
        commit = done.stdout.strip() or commit
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": commit,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
