"""Measures time and memory of reading long logs, against the goals of 10 s and 500 MB.

    report_rows.py [--rows 10000 100000 1000000] [--checkpoints 100] [--rounds 1]

For each number of rows, the program writes a log like the log of a run with three
sources. Then separate programs parse its rows and do nothing with them, make a report,
list the run and its checkpoints, and start the log again as a resumed run does. Memory
is the peak of the whole program.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = ("web", "code", "books")
TIMED = """
import resource, sys, time
began = time.process_time()
{code}
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scale = 2**10 if sys.platform == "darwin" else 1
print(f"{{time.process_time() - began:.2f}} {{peak / scale / 2**10:.0f}}")
"""
SAVE = """
import numpy as np
from roxxel_ckpt import Checkpointer
with Checkpointer({folder!r}, max_to_keep={count} + 1) as checkpointer:
    for step in range(1, {count} + 1):
        checkpointer.save(step, {{"loss": 2 + 8 / step}}, state={{"w": np.zeros(4)}})
"""
JOBS = {
    "parse": (
        "import msgspec, pathlib\n"
        "decode = msgspec.json.Decoder().decode\n"
        "for line in (pathlib.Path({run!r}) / 'metrics.jsonl').open('rb'):\n"
        "    decode(line)"
    ),
    "report": "from roxxel.report import page, read_facts\npage(read_facts({run!r}))",
    "ls": (
        "from roxxel_train import RunFolder\n"
        "from roxxel.cli._ls import read_status\n"
        "read_status(RunFolder({run!r}))"
    ),
    "ckpt ls": "from roxxel_ckpt.cli import main\nmain(['ls', {run!r}])",
    "resume": (
        "from roxxel_train import Logger\n"
        "with Logger({run!r}, terminal=False) as log:\n"
        "    past = log.position()\n"
        "    log.start({{'step': {step}}}, past)\n"
        "    log.flush()"
    ),
}


def write(run: Path, num_rows: int) -> None:
    """Write a log whose rows have the fields of a trainer's rows."""
    run.mkdir()
    with (run / "metrics.jsonl").open("w") as file:
        moment = "2026-01-01T00:00:00.000Z"
        start = {"kind": "start", "step": 0, "time": moment, "total_steps": num_rows}
        file.write(json.dumps(start) + "\n")
        for step in range(1, num_rows + 1):
            tokens = dict.fromkeys(SOURCES, 4096 * step)
            loss = 2.0 + 8.0 / step + (step * 7919 % 101) / 1000
            row = {
                "kind": "train",
                "step": step,
                "time": "2026-01-02T03:04:05.678Z",
                "phase": 0,
                "loss": loss,
                "grad_norm": loss / 3,
                "loss_mean": loss,
                "perplexity": 9.5,
                "tokens": 12288 * step,
                "tokens_by_source": tokens,
                "planned_tokens_by_source": tokens,
                "rows_by_source": dict.fromkeys(SOURCES, 4 * step),
                **{f"loss/{name}": loss for name in SOURCES},
                "digest": "0123456789abcdef",
                "step_s": 0.1234567,
                "tokens_per_s": 99535.81234,
                "wait_s": 0.0001234,
                "wait_share": 0.001,
                "read_s": 1e-4,
                "assemble_s": 1.2e-5,
                "transfer_s": 1.1e-5,
                "model_flops_per_s": 1.234e14,
                "mfu": 0.4321,
                "device_bytes": 12345678901,
                "device_peak_bytes": 23456789012,
            }
            file.write(json.dumps(row) + "\n")


def measure(code: str) -> tuple[float, int]:
    """Return the CPU time in seconds, and the peak memory in MiB, of a program."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(code=code)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), int(peak)


def main(
    arguments: list[str] | None = None,
) -> dict[tuple[int, str], tuple[float, int]]:
    """Print and return CPU seconds and peak MiB by number of rows and job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--checkpoints", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args(arguments)
    found: dict[tuple[int, str], tuple[float, int]] = {}
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version_info[:3]}"
    )
    for num_rows in options.rows:
        with tempfile.TemporaryDirectory() as scratch:
            run = Path(scratch) / "run"
            write(run, num_rows)
            folder = str(run / "checkpoints")
            measure(SAVE.format(folder=folder, count=options.checkpoints))
            size = (run / "metrics.jsonl").stat().st_size / 2**20
            print(f"{num_rows:,} rows, {size:,.0f} MiB")
            for job, code in [*JOBS.items()] * options.rounds:
                filled = code.format(run=str(run), step=num_rows - num_rows // 100)
                found[num_rows, job] = seconds, peak = measure(filled)
                print(f"  {job:7} {seconds:6.2f} s of CPU  {peak:5,} MiB")
    return found


if __name__ == "__main__":
    main()
