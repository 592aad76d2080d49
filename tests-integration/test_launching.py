"""`roxxel train` on one config: alone, with `--processes`, and as a job of Slurm."""

from __future__ import annotations

import csv
import fcntl
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import forked
import pytest

from .conftest import SEVERAL_PROCESSES, simulated
from .runs import MODEL, PACED, all_said, rows, slurm_step, stop_at, write_small_project

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_small_project(tmp_path / "project")


def start(
    folder: Path,
    *options: str,
    command: Sequence[str] = ("train", "run.toml"),
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start the command that a user types, in an environment with these variables.

    The processes that the command starts are forks of the warm process, as it is.
    """
    return subprocess.Popen(
        [forked.commands() / "roxxel", *command, *options],
        cwd=folder,
        env={**os.environ, **simulated(1), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.versions
def test_one_config_reads_the_same_however_it_is_launched(tmp_path: Path) -> None:
    folders = [
        write_small_project(tmp_path / name) for name in ("alone", "local", "slurm")
    ]
    alone, local, slurm = folders
    step = slurm_step(2)

    said = [
        *all_said([start(alone)], 300),
        *all_said([start(local, "--processes", "2")], 300),
        *all_said([start(slurm, variables=step[index]) for index in (0, 1)], 300),
    ]

    for shown, told in said[:3]:
        assert "done: 16 of 16 steps" in shown, told
        assert re.search(r"^step 16/16 ", told, re.MULTILINE), told
    assert said[3] == ("", "")
    expected = rows(alone / "run")
    assert len(expected) == 16 + 2
    assert all(row["digest"] for row in expected if row["kind"] == "train")
    for folder in (local, slurm):
        found = rows(folder / "run")
        assert [without_losses(row) for row in found] == [
            without_losses(row) for row in expected
        ]
        assert [losses(row) for row in found] == [
            pytest.approx(losses(row), rel=1e-5) for row in expected
        ]


def without_losses(row: dict[str, object]) -> dict[str, object]:
    """Return the fields of a row that no float reduction changes."""
    return {name: x for name, x in row.items() if not isinstance(x, float)}


def losses(row: dict[str, object]) -> dict[str, float]:
    return {name: x for name, x in row.items() if isinstance(x, float)}


def test_signal_to_the_launcher_saves_and_the_same_command_continues(
    project: Path,
) -> None:
    options = ("--processes", "2", "--devices-per-process", "2")

    paced = start(project, *options, variables=PACED)
    assert stop_at(3, signal.SIGTERM, paced) == 75
    [(shown, told)] = all_said([start(project, *options)], 300)

    assert "done: 16 of 16 steps" in shown, told
    assert "resumed from step" in told
    assert [row["step"] for row in rows(project / "run") if row["kind"] == "train"] == [
        *range(1, 17)
    ]


def test_audit_of_a_killed_run_continued_by_one_process_is_equal(
    project: Path,
) -> None:
    paced = start(project, "--processes", "2", variables=PACED)
    stop_at(12, signal.SIGKILL, paced)
    [(shown, told)] = all_said([start(project)], 300)
    assert "resumed from step" in told
    assert "done: 16 of 16 steps" in shown

    audit = [sys.executable, "-m", "roxxel", "verify", "--data", "run"]
    done = forked.run(audit, cwd=project, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "16 steps" in done.stdout


# Process 1 is killed when it reads the batch of step 8, so that the run has begun.
DIES = """
import signal

def die(sampler, step, *given, **named):
    if step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return rows(sampler, step, *given, **named)

if os.environ["JAX_PROCESS_ID"] == "1":
    Sampler.rows = die
"""


def test_process_that_dies_ends_the_others_and_is_named(project: Path) -> None:
    (project / "tiny.py").write_text(MODEL + DIES)

    process = start(project, "--processes", "2")
    [(_, told)] = all_said([process], 300)

    assert process.returncode in {1, 128 + signal.SIGKILL}
    assert "the run ends: process 1 failed" in told


def test_error_in_another_process_is_shown_with_its_index(project: Path) -> None:
    (project / "tiny.py").write_text(
        MODEL + "\nimport os\nif os.environ['JAX_PROCESS_ID'] == '1':\n"
        "    raise RuntimeError('out of luck')\n"
    )

    process = start(project, "--processes", "2")
    [(_, told)] = all_said([process], 300)

    assert process.returncode == 1
    assert "[process 1] RuntimeError: out of luck" in told


def test_error_meant_for_users_is_a_sentence_also_in_several_processes(
    project: Path,
) -> None:
    lock = project / "run" / "run.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start(project, "--processes", "2")
        [(_, told)] = all_said([process], 300)

    assert process.returncode == 1
    assert "the run ends: process 0 failed: RunMismatchError: run: another" in told
    assert "Traceback" not in told


def test_drill_of_two_processes_ends_as_the_unbroken_run(project: Path) -> None:
    done = subprocess.run(
        [
            *(forked.commands() / "roxxel", "drill", "run.toml", "--seed", "3"),
            *("--processes", "2", "--kills", "1", "--steps", "9"),
        ],
        cwd=project,
        env={**os.environ, **simulated(1)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill 1: after step" in done.stdout
    assert re.search("log: 1. rows are equal", done.stdout)


def test_job_whose_other_task_is_missing_ends_with_one_sentence(
    project: Path,
) -> None:
    alone = slurm_step(2)[1]

    process = start(project, "--connect-timeout", "1", variables=alone)
    [(shown, told)] = all_said([process], 300)

    assert process.returncode == 1
    assert told == (
        "roxxel: process 1 of 2 (Slurm) did not find the other processes within 1 s; "
        "check that all of them were started and can reach the host of process 0, then "
        "start all of them again\n"
    )
    assert shown == ""


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ((), {"SLURM_STEP_NUM_TASKS": "1"}),  # a shell of `salloc -n 2`
        (("--processes", "1"), {}),
    ],
)
def test_single_process_of_slurm_waits_for_nobody(
    project: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    environment = {**slurm_step(2)[0], **variables}

    process = start(project, "--preflight", *options, variables=environment)
    [(shown, told)] = all_said([process], 300)

    assert process.returncode == 0, told
    assert shown.endswith("ready\n")


def test_two_processes_branch_from_a_run_of_one(project: Path) -> None:
    [(_, told)] = all_said([start(project)], 300)
    changes = ("--branch", "run@10", "--set", "save_path=b")

    for expected in ("begins as a branch of step 10 of ", "already complete"):
        process = start(project, *changes, "--processes=2")
        [(shown, told)] = all_said([process], 300)
        assert process.returncode == 0, told
        assert expected in shown + told

    assert [without_losses(row) for row in rows(project / "b")] == [
        without_losses(row) for row in rows(project / "run") if row["step"] > 10
    ]
    assert [losses(row) for row in rows(project / "b")] == [
        pytest.approx(losses(row), rel=1e-5)
        for row in rows(project / "run")
        if row["step"] > 10
    ]


def test_sweep_of_two_processes_has_the_table_of_one(project: Path) -> None:
    blends = "[[blends]]\nweights = {{ self = {}, code = 1 }}\n"
    tables: list[list[dict[str, str]]] = []
    for name, options in (("alone", ()), ("local", ("--processes", "2"))):
        (project / f"{name}.toml").write_text(
            'config = "run.toml"\nscale = 0.5\n' + blends.format(1) + blends.format(3)
        )
        process = start(project, *options, command=("sweep", f"{name}.toml"))
        [(shown, told)] = all_said([process], 300)
        assert process.returncode == 0, told
        assert shown.count("2 of 2 runs are finished") == 1
        with (project / name / "sweep.csv").open() as file:
            tables.append(list(csv.DictReader(file)))

    alone, local = tables
    assert len(alone) == len(local) == 4
    for one, other in zip(alone, local, strict=True):
        measured = {name for name in one if "loss" in name or name == "target"}
        assert {name: one[name] for name in one.keys() - measured} == {
            name: other[name] for name in other.keys() - measured
        }
        assert [float(other[name] or 0) for name in sorted(measured)] == pytest.approx(
            [float(one[name] or 0) for name in sorted(measured)], rel=1e-5
        )
