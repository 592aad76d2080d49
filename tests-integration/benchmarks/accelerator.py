"""Measures one GPU in eight minutes: its peak, attention, `Trainer` and its resumes.

The stages run in order of usefulness, each in its own processes and in its own share of
`--budget-s`. A stage may use the time that earlier stages left. If a stage fails or
takes too long, its record has the reason, and the next stage begins:

- device: peak of a bfloat16 matrix product, bandwidths, versions and flags;
- attention: every implementation against float32 with a mask: values, gradients,
  speed, the kernels of the compiled program, and whether documents see each other;
- throughput: 124 million parameters at 1024 tokens, `Trainer` and a hand-written loop
  in turn: tokens/s, MFU, waiting for data, falling loss, the slowest kernels; then
  other losses, and attention with segment masks;
- resume: losses after kill -9 against those of an unbroken run, bit by bit, with
  XLA's deterministic flags, and what a repeated update costs under them;
- save: what the first save and a later one cost a running training, how long a digest
  of the state takes, and the peak memory of a restore;
- phase-change: the longest step of a change to sequences twice as long;
- larger: 360 million parameters by hand;
- long: two rows of 32 768 tokens by hand.

`--out FOLDER` gets `result.json`, which is replaced atomically while the stages run,
`stages.log`, and the compiled step of the stage throughput. The exit code is 1 if any
stage failed. `--dry` runs every stage at a tiny size, on a CPU. Without a package
index, install what `tests-integration/tools/wheels.py` has collected.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _accelerator_report as report

Record = dict[str, Any]

HERE = Path(__file__).parent
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
KILLED = -signal.SIGKILL
POLL_S = 0.2
GRACE_S = 10.0
"""Time after the budget at which the program ends in any case."""


@dataclass(frozen=True)
class Stage:
    """One stage and its share of the budget.

    Attributes:
        name: Name in the result.
        share: Part of the budget.
        parts: Functions of `_accelerator_stages.py`; each runs in its own process.
        flags: Further flags for XLA.
        least_s: Minimum time that must be left for the stage to begin.
    """

    name: str
    share: float
    parts: tuple[str, ...]
    flags: str = ""
    least_s: float = 0.0


STAGES = (
    Stage("device", 0.09, ("device",)),
    Stage("attention", 0.10, ("attention",)),
    Stage("throughput", 0.30, ("throughput",)),
    Stage("resume", 0.14, ("run_and_kill", "resume", "repeat"), DETERMINISTIC),
    Stage("save", 0.14, ("run_and_save", "restore")),
    Stage("phase-change", 0.08, ("phase_change",)),
    Stage("larger", 0.10, ("larger",), least_s=40.0),
    Stage("long", 0.05, ("long",)),
)
NAMES = tuple(stage.name for stage in STAGES)
KILLED_PARTS = {"run_and_kill"}
"""Parts that end by killing their own process."""


@dataclass(frozen=True)
class Job:
    """The job of one process.

    Attributes:
        part: Function of `_accelerator_stages.py`.
        folder: Scratch folder of the stage.
        out: Folder of the result.
        dry: Whether to use the tiny size.
        flags: Further flags for XLA.
        found: Records of earlier stages by name, and `part` for earlier parts.
        deadline: `time.time()` at which the process is killed.
        fault: `"fail"` raises an error at the start, `"hang"` waits forever there.
    """

    part: str
    folder: Path
    out: Path
    dry: bool
    flags: str
    found: dict[str, Record]
    deadline: float
    fault: str | None = None

    @property
    def record(self) -> Path:
        """File of the fields, replaced atomically."""
        return self.folder / f"{self.part}.json"

    def save(self, fields: Record) -> None:
        """Write the fields of this process to its file, which survives a kill."""
        write_json(self.record, fields)


def main(arguments: list[str] | None = None) -> int:
    """Run the stages; return 1 if any of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder of the result")
    parser.add_argument("--budget-s", type=float, default=480.0)
    parser.add_argument("--dry", action="store_true", help="a tiny size, on a CPU")
    parser.add_argument("--stages", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--scratch", type=Path, help="folder for corpora and runs")
    parser.add_argument(
        "--cache", type=Path, help="folder of compiled programs to keep"
    )
    for word in ("inject", "hang"):
        parser.add_argument(
            f"--{word}", nargs="+", choices=NAMES, default=[], help="to test a failure"
        )
    parser.add_argument("--report", type=Path, help="print this result and end")
    options = parser.parse_args(arguments)
    if options.report:
        print(report.text(json.loads(options.report.read_text())))
        return 0
    if options.out is None:
        parser.error("--out is missing; name a folder for the result")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.scratch is not None:
        options.scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=options.scratch, ignore_cleanup_errors=True
    ) as scratch:
        result = Program(options, Path(scratch).resolve()).run()
    print(report.text(result), flush=True)
    return 1 if any("failed" in found for found in result["stages"].values()) else 0


class Program:
    """Runs the stages within the budget and keeps the result on the disk."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self._began = time.time()
        self._options = options
        self._out: Path = options.out.resolve()
        self._scratch = scratch
        self._log = self._out / "stages.log"
        self._log.unlink(missing_ok=True)
        self._result: Record = {
            "format": 1,
            "machine": _machine(),
            "arguments": {
                name: getattr(options, name)
                for name in ("budget_s", "dry", "stages", "inject", "hang")
            },
            "stages": {},
        }
        # The children read these variables when they import and start JAX.
        cache = options.cache or scratch / "cache"
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.resolve())
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        if options.dry:
            os.environ["JAX_PLATFORMS"] = "cpu"
        # The server imports the stages once, and every process begins as its copy.
        folders = (str(HERE), os.environ.get("PYTHONPATH", ""))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["_accelerator_stages"])

    def run(self) -> Record:
        """Run the stages; return the result."""
        budget_s: float = self._options.budget_s

        def out_of_time(*_: object) -> None:
            raise TimeoutError(f"the program took more than {budget_s + GRACE_S:g} s")

        signal.signal(signal.SIGALRM, out_of_time)
        signal.setitimer(signal.ITIMER_REAL, budget_s + GRACE_S)
        chosen = [stage for stage in STAGES if stage.name in self._options.stages]
        whole = sum(stage.share for stage in chosen)
        share = 0.0
        for stage in chosen:
            share += stage.share / whole
            self._stage(stage, self._began + share * budget_s)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._result["seconds"] = time.time() - self._began
        self._write()
        return self._result

    def _stage(self, stage: Stage, deadline: float) -> None:
        began = time.time()
        folder = self._scratch / stage.name
        folder.mkdir()
        record: Record = {}
        self._result["stages"][stage.name] = record
        options = self._options
        left_s = deadline - began
        if left_s < stage.least_s and not options.dry:
            record["skipped"] = f"{left_s:.0f} s are left, and it takes a minute"
            self._write()
            print(report.line(stage.name, record), flush=True)
            return
        fault = "fail" if stage.name in options.inject else None
        fault = "hang" if stage.name in options.hang else fault
        found = {k: v for k, v in self._result["stages"].items() if k != stage.name}
        job = Job(
            *("", folder, self._out, options.dry, stage.flags),
            *(found, deadline, fault),
        )
        for part in stage.parts:
            job = replace(job, part=part)
            try:
                self._part(job, record)
            except TimeoutError as error:
                record["failed"] = str(error)
            job.found[part] = dict(record)
            if "failed" in record:
                break
        record["seconds"] = time.time() - began
        shutil.rmtree(folder, ignore_errors=True)
        self._write()
        print(report.line(stage.name, record), flush=True)

    def _part(self, job: Job, record: Record) -> None:
        """Run one process until its end or the deadline; update the record."""
        limit_s = job.deadline - time.time()
        if limit_s <= 0:
            record["failed"] = f"{job.part} did not begin: the budget was used up"
            return
        process = self._context.Process(target=_child, args=(job, str(self._log)))
        process.start()
        seen = 0
        while process.is_alive() and time.time() < job.deadline:
            process.join(POLL_S)
            seen = self._merge(job, record, seen)
        hung = process.is_alive()
        if hung:
            _kill(process.pid)
        process.join(GRACE_S)
        self._merge(job, record, seen)
        if "failed" in record:
            return
        expected = KILLED if job.part in KILLED_PARTS else 0
        if hung:
            record["failed"] = f"{job.part} was killed after {limit_s:.0f} s, its share"
        elif process.exitcode != expected or not job.record.exists():
            record["failed"] = (
                f"{job.part} ended with {process.exitcode} instead of {expected}; "
                f"the last lines of {self._log.name} say more"
            )

    def _merge(self, job: Job, record: Record, seen: int) -> int:
        """Copy the fields that a process wrote since `seen`; return their time."""
        if not job.record.exists():
            return seen
        changed = job.record.stat().st_mtime_ns
        if changed != seen:
            record.update(json.loads(job.record.read_text()))
            self._write()
        return changed

    def _write(self) -> None:
        write_json(self._out / "result.json", self._result)


def write_json(path: Path, value: Any) -> None:
    """Write a file that is whole or absent."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(value, indent=1) + "\n")
    draft.replace(path)


def _child(job: Job, log: str) -> None:
    """Run a part in this process; its output and its last error go to the log."""
    os.setsid()  # a kill of the group reaches what the part starts
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    print(f"--- {job.part}", file=sys.stderr, flush=True)
    outer = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{outer} {job.flags}".strip()
    if job.fault == "hang":
        signal.pause()
    import _accelerator_stages

    _accelerator_stages.run(job)


def _kill(group: int | None) -> None:
    if group is not None:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:  # it had no time to make its group
            os.kill(group, signal.SIGKILL)


def _machine() -> Record:
    return {
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "nvidia_smi": _output(
            *("nvidia-smi", "--format=csv,noheader"),
            "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit",
        ),
        "commit": _output("git", "-C", str(HERE), "rev-parse", "HEAD"),
        "flags": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("XLA_", "JAX_", "NVIDIA_TF32", "TF_"))
        },
    }


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return f"no {command[0]} here"
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=20, check=False
    )
    return (done.stdout or done.stderr).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
