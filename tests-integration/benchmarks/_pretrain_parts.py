"""The parts of the pre-training benchmark: each starts processes and makes a record.

This module never imports JAX: only the started process may use the device.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _report import Record

STAGE = Path(__file__).with_name("_pretrain_stage.py")

DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
"""It also sets `--xla_gpu_exclude_nondeterministic_ops` and disables autotuning."""

KILLED = -9

VARIANTS: dict[str, tuple[str, bool]] = {
    "deterministic": (DETERMINISTIC, True),
    "deterministic, compiled anew": (DETERMINISTIC, False),
    "default": ("", True),
    "default, compiled anew": ("", False),
}
"""XLA flags of a run, and whether its resume finds the compiled programs of the run."""


@dataclass(frozen=True)
class Plan:
    """The settings of the command line.

    Attributes:
        cache: Folder of compiled programs that all parts share.
        seconds: Time to measure a rate for.
        limit_s: Time after which a process is killed.
        share: Share of the device's memory that a state takes.
        mem_fraction: Share of the device's memory that JAX may use.
        variants: Which resumes to try, of `VARIANTS`.
        batch_size: Sequences of a batch, in place of the decoder's; even.
    """

    cache: Path
    seconds: float
    limit_s: float
    share: float
    mem_fraction: float
    variants: tuple[str, ...]
    batch_size: int | None = None

    def stage(
        self,
        stage: str,
        size: str,
        folder: Path,
        *,
        flags: str = "",
        cache: Path | None = None,
        environment: Mapping[str, str] | None = None,
        killed: bool = False,
    ) -> Record:
        """Run one stage in a process of its own.

        Args:
            stage: Of `_pretrain_stage.py`.
            size: Name of the decoder.
            folder: Scratch folder that the stages of a part share.
            flags: Further flags for XLA.
            cache: Folder of compiled programs, in place of the shared one.
            environment: Further variables.
            killed: Whether the process kills itself once it has written its fields.

        Returns:
            The fields that it wrote; `failed` with the reason if it ended otherwise.
        """
        folder.mkdir(parents=True, exist_ok=True)
        result = folder / f"{stage}.json"
        result.unlink(missing_ok=True)
        job = {
            "size": size,
            "folder": str(folder),
            "seconds": self.seconds,
            "share": self.share,
            "batch_size": self.batch_size,
        }
        outer = os.environ
        variables = {
            **outer,
            "XLA_FLAGS": f"{outer.get('XLA_FLAGS', '')} {flags}".strip(),
            "XLA_PYTHON_CLIENT_MEM_FRACTION": str(self.mem_fraction),
            "JAX_COMPILATION_CACHE_DIR": str(cache or self.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "TF_CPP_MIN_LOG_LEVEL": outer.get("TF_CPP_MIN_LOG_LEVEL", "2"),
            **(environment or {}),
        }
        command = [sys.executable, str(STAGE), stage, json.dumps(job), str(result)]
        try:
            done = subprocess.run(
                command,
                env=variables,
                capture_output=True,
                text=True,
                timeout=self.limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"{stage} took more than {self.limit_s:g} s"}
        if done.returncode != (KILLED if killed else 0) or not result.exists():
            print(done.stderr[-4000:], file=sys.stderr)
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            return {"failed": f"{stage} ended with {done.returncode}: {last[:300]}"}
        return json.loads(result.read_text())


def throughput(plan: Plan, size: str, folder: Path) -> Record:
    """Return the record of `Trainer` beside the hand-written loop."""
    return plan.stage("throughput", size, folder)


def phase_change(plan: Plan, size: str, folder: Path) -> Record:
    """Return the record of what a phase change and a save cost."""
    return plan.stage("phase_change", size, folder)


def resume(plan: Plan, size: str, folder: Path) -> Record:
    """Return what resumes give, for every variant; names of variants are keys."""
    return {name: _resume(plan, size, folder / name, name) for name in plan.variants}


def _resume(plan: Plan, size: str, folder: Path, name: str) -> Record:
    flags, shared = VARIANTS[name]
    caches = folder / "cache", folder / ("cache" if shared else "another cache")
    began = plan.stage(
        "run_and_kill", size, folder, flags=flags, cache=caches[0], killed=True
    )
    if "failed" in began:
        return began
    resumed = plan.stage("resume", size, folder, flags=flags, cache=caches[1])
    if "failed" in resumed:
        return {**began, **resumed}
    unbroken, killed = (_rows(folder / run) for run in ("unbroken", "killed"))
    start = resumed["resumed_from"]
    later = [step for step in unbroken if step > start]
    if not start or not later:
        why = f"resume began at step {start} of {len(unbroken)}, so it shows nothing"
        return {**began, "failed": why}
    if unbroken.keys() != killed.keys():
        steps = sorted(unbroken.keys() ^ killed.keys())
        return {**began, "failed": f"steps that only one of the runs logged: {steps}"}
    return {
        **{key: began[key] for key in ("platform", "device_kind", "jax", "xla_flags")},
        "resumed_from": start,
        "steps": len(unbroken),
        "later_steps": len(later),
        "losses": [unbroken[step]["loss"] for step in unbroken],
        "repeated_identical": all(
            _same(unbroken[step], killed[step]) for step in unbroken if step <= start
        ),
        "resumed_identical": all(_same(unbroken[step], killed[step]) for step in later),
        "first_difference": next(
            (step for step in unbroken if not _same(unbroken[step], killed[step])),
            None,
        ),
        "largest_difference": max(
            abs(unbroken[step]["loss"] - killed[step]["loss"]) for step in later
        ),
        "step_s": statistics.median(unbroken[step]["step_s"] for step in later),
        "memory_while_training": _memory(began),
        "memory_at_resume": _memory(resumed),
    }


def _rows(run: Path) -> dict[int, Record]:
    """Return the rows of training by step. Python writes floats with every bit."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row for row in rows if row["kind"] == "train"}


def _same(one: Record, other: Record) -> bool:
    return all(one[name] == other[name] for name in ("loss", "grad_norm", "tokens"))


def _memory(fields: Record) -> Record:
    names = ("accounting", "peak_bytes_in_use", "bytes_limit")
    return {name: fields[name] for name in names if name in fields}


def memory(plan: Plan, size: str, folder: Path) -> Record:
    """Return whether a state that takes a share of the memory trains and resumes."""
    began = plan.stage("large_run_and_kill", size, folder, killed=True)
    record: Record = {"share": plan.share, "mem_fraction": plan.mem_fraction}
    if "failed" in began:
        return {**record, "trains": False, "resumes": False, "reason": began["failed"]}
    names = ("platform", "device_kind", "jax", "device_limit_bytes", "state_bytes")
    record |= {name: began[name] for name in names}
    record |= {"trains": True, "memory_while_training": _memory(began)}
    resumed = plan.stage("large_resume", size, folder)
    if "failed" in resumed:
        return {**record, "resumes": False, "reason": resumed["failed"]}
    peaks = [fields["peak_bytes_in_use"] for fields in (began, resumed)]
    return {
        **record,
        "resumes": resumed["resumed_from"] > 0,
        "resumed_from": resumed["resumed_from"],
        "memory_at_resume": _memory(resumed),
        "resume_over_training": peaks[1] / peaks[0],
    }


def compile_part(plan: Plan, size: str, folder: Path) -> Record:
    """Return whether a busy device compiles the program that an idle one does."""
    uncached = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    chosen = folder / "autotune.txt"
    idle = plan.stage(
        "compile_idle",
        size,
        folder / "idle",
        flags=f"--xla_gpu_dump_autotune_results_to={chosen}",
        environment=uncached,
    )
    busy = plan.stage("compile_busy", size, folder / "busy", environment=uncached)
    for found in (idle, busy):
        if "failed" in found:
            return found
    record: Record = {
        **{name: idle[name] for name in ("platform", "device_kind", "jax")},
        "updates_meanwhile": busy["updates_meanwhile"],
        "hlo_lines": idle["hlo_lines"],
        "losses": idle["losses"],
        **compare_programs(folder / "idle", folder / "busy", idle, busy),
        "pinned": None,
    }
    if chosen.exists():
        pinned = plan.stage(
            "compile_busy",
            size,
            folder / "pinned",
            flags=f"--xla_gpu_load_autotune_results_from={chosen}",
            environment=uncached,
        )
        record["pinned"] = (
            pinned
            if "failed" in pinned
            else compare_programs(folder / "idle", folder / "pinned", idle, pinned)
        )
    return record


def compare_programs(
    idle_folder: Path, busy_folder: Path, idle: Record, busy: Record
) -> Record:
    """Return how the programs of two stages differ, and whether their results do.

    Args:
        idle_folder: Folder of the stage `compile_idle`.
        busy_folder: Folder of the stage `compile_busy`.
        idle: Fields of the first stage.
        busy: Fields of the second stage.
    """
    paths = idle_folder / "idle.hlo", busy_folder / "busy.hlo"
    programs = [program_lines(path.read_text()) for path in paths]
    differing = [*(programs[0] - programs[1]), *(programs[1] - programs[0])]
    return {
        "same_program": idle["hlo_sha256"] == busy["hlo_sha256"],
        "same_results": all(
            idle[name] == busy[name] for name in ("losses", "state_sha256")
        ),
        "differing_lines": len(differing),
        "differing_ops": dict(Counter(map(operation, differing)).most_common(20)),
        "examples": differing[:6],
    }


def program_lines(text: str) -> Counter[str]:
    """Return the lines of a normalised program without the numbers of its names."""
    return Counter(re.sub(r"%\d+", "%", line).strip() for line in text.splitlines())


def operation(line: str) -> str:
    """Return the operation of a line of a program, such as `fusion`."""
    found = re.search(r"(?<=[\s})])([a-z][a-z0-9\-]*)\(", line)
    return found.group(1) if found else "other"


PARTS: dict[str, Callable[[Plan, str, Path], dict[str, Any]]] = {
    "throughput": throughput,
    "phase-change": phase_change,
    "resume": resume,
    "memory": memory,
    "compile": compile_part,
}
