"""One process of the pre-training benchmark: `_pretrain_stage.py STAGE JOB RESULT`.

`JOB` is JSON; the fields of the record go to the file `RESULT`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _stage_compile
import _stage_phase_change
import _stage_runs
import _stage_throughput
from _pretraining import Job, device_fields

if TYPE_CHECKING:
    from collections.abc import Callable

STAGES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "device": lambda _: device_fields(),
    "throughput": _stage_throughput.throughput,
    "phase_change": _stage_phase_change.phase_change,
    "resume": _stage_runs.resume,
    "large_resume": _stage_runs.large_resume,
    "compile_busy": _stage_compile.compile_busy,
    "compile_idle": _stage_compile.compile_idle,
}

KILLED_STAGES = {
    "run_and_kill": _stage_runs.run_and_kill,
    "large_run_and_kill": _stage_runs.large_run_and_kill,
}
"""Stages that write their fields and then kill this process."""


def main(stage: str, words: str, result: str) -> None:
    """Run a stage and write its fields."""
    values = json.loads(words)
    job = Job(**values | {"folder": Path(values["folder"])})

    def save(fields: dict[str, Any]) -> None:
        Path(result).write_text(json.dumps(fields))

    if stage in KILLED_STAGES:
        KILLED_STAGES[stage](job, save)
        raise AssertionError(f"{stage} outlived its kill")
    save(STAGES[stage](job))


if __name__ == "__main__":
    main(*sys.argv[1:])
