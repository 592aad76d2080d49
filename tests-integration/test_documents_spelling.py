"""The programs of the documents run with no change of a name or an argument."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import RunProgram

DEVICES = pytest.mark.parametrize("devices", [1, 8])


@DEVICES
def test_tutorial_runs_and_run_again_resumes(
    run_program: RunProgram, tmp_path: Path, devices: int
) -> None:
    first = run_program("tutorial.py", devices=devices)
    assert first.returncode == 0, first.stderr
    again = run_program("tutorial.py", devices=devices)
    assert again.returncode == 0, again.stderr

    run = tmp_path / "run_delta"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    # 1200 documents of 128 tokens and a separator: 75 steps of 16 x 129, then 20 % of
    # the 151 steps of 1025 tokens.
    assert [row["step"] for row in rows if row["kind"] == "train"] == [1, 100, 105]
    assert [row["text"] for row in rows if row["kind"] == "eval"] == [
        "[sampled after step 105]"
    ]
    assert "already complete" in again.stderr
    assert sorted(path.name for path in run.iterdir()) == [
        "checkpoints",
        "metrics.jsonl",
        "run.json",
        "run.lock",
        "system.log",
    ]
    placed = "batch_size=1 does not divide over the 8 devices"
    assert (placed in (run / "system.log").read_text()) == (devices == 8)
    assert "arning" not in first.stderr + again.stderr


@DEVICES
def test_checkpoint_program_resumes(run_program: RunProgram, devices: int) -> None:
    first = run_program("checkpointing.py", "250", devices=devices)
    assert first.returncode == 0, first.stderr
    again = run_program("checkpointing.py", "450", devices=devices)
    assert again.returncode == 0, again.stderr

    assert first.stdout.splitlines() == ["Resumed from step: 0"]
    assert again.stdout.splitlines() == ["Resumed from step: 200"]
    assert "arning" not in first.stderr + again.stderr


@DEVICES
def test_loading_programs_run(run_program: RunProgram, devices: int) -> None:
    # The document writes `with mesh:`, at which JAX warns: that line is the user's.
    allow = "ignore::DeprecationWarning:__main__"
    done = run_program("loading.py", devices=devices, allow=allow)
    assert done.returncode == 0, done.stderr

    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("plain")] == [
        f"plain [{first} {first + 1}]".replace("[9 10]", "[ 9 10]")
        for first in range(1, 10, 2)
    ]
    assert [line for line in lines if line.startswith("global")] == [
        f"global (8,) {sum(range(start, start + 8))}" for start in range(0, 128, 8)
    ]
