"""The scripts of the guide for clusters run, as far as one machine allows."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import pytest

from .conftest import PROGRAMS, SEVERAL_PROCESSES, simulated
from .runs import PACED, all_said, free_port, rows, slurm_step, write_small_project

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "cluster.md"
BLOCKS = re.findall(r"^```\w+\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)


def block(start: str) -> str:
    """Return the only block of the guide that begins so."""
    [found] = [text for text in BLOCKS if text.startswith(start)]
    return found


def write_command(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_small_project(tmp_path / "project")


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """Return a folder of commands for PATH: `roxxel`, and stubs of Slurm's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    write_command(folder / "roxxel", str(forked.commands() / "roxxel"))
    write_command(folder / "srun", sys.executable, str(PROGRAMS / "srun.py"))
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@" >> scontrol.txt\n')
    (folder / "scontrol").chmod(0o755)
    return folder


def environment(commands: Path, **variables: str) -> Mapping[str, str]:
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    return {**os.environ, **simulated(1), "PATH": path, **variables}


def test_job_of_slurm_is_queued_again_at_its_time_limit_and_then_completes(
    project: Path, commands: Path
) -> None:
    (project / "train.sbatch").write_text(block("#!/bin/bash\n#SBATCH"))
    variables = {
        "ROXXEL_TEST_STEP": json.dumps(slurm_step(2)),
        # The variables of the script itself, which is not a step.
        "SLURM_JOB_ID": "1234",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "0",
    }

    job = ["bash", "train.sbatch"]

    def run_job(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            job,
            cwd=project,
            env=environment(commands, **variables, **more),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    first = run_job(ROXXEL_TEST_LIMIT="3", **PACED)

    assert first.returncode == 75, first.stderr
    assert (project / "scontrol.txt").read_text() == "requeue 1234\n"

    second = run_job()

    assert second.returncode == 0, second.stderr
    assert "resumed from step" in second.stderr
    assert "done: 16 of 16 steps" in second.stdout
    assert (project / "scontrol.txt").read_text() == "requeue 1234\n"


def test_options_of_the_job_come_before_its_commands() -> None:
    lines = block("#!/bin/bash\n#SBATCH").splitlines()[1:]
    options = [line for line in lines if line.startswith("#SBATCH ")]

    assert lines[: len(options)] == options
    assert "#SBATCH --signal=TERM@120" in options  # without B:, to the processes


def test_jax_accepts_the_flags_of_the_guide() -> None:
    # An unknown flag of XLA aborts the program.
    flags = set(re.findall(r"`(--xla_\w+(?:=\w+)?)`", GUIDE.read_text()))
    given = " ".join(f if "=" in f else f"{f}=134217728" for f in sorted(flags))
    assert len(flags) == 5

    forked.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**os.environ, **simulated(1), "XLA_FLAGS": given},
        check=True,
        timeout=600,
    )


def test_pods_of_the_jobset_find_each_other(project: Path) -> None:
    yaml: Any = importlib.import_module("yaml")
    jobset = yaml.safe_load(block("apiVersion: jobset"))
    [job] = jobset["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    [container] = spec["template"]["spec"]["containers"]
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    host, _, port = variables["JAX_COORDINATOR_ADDRESS"].partition(":")

    # The name that JobSet gives the first pod, and the number of pods.
    name = jobset["metadata"]["name"]
    assert host == f"{name}-{job['name']}-0-0.{name}"
    assert port.isdecimal()
    assert int(variables["JAX_NUM_PROCESSES"]) == spec["parallelism"]
    assert spec["completions"] == spec["parallelism"]
    assert container["command"][0] == "roxxel"
    here = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_NUM_PROCESSES": "2",
    }
    said = all_said(
        [
            forked.Popen(
                [sys.executable, "-m", *container["command"]],
                cwd=project,
                env={
                    **os.environ,
                    **simulated(1),
                    **here,
                    "JOB_COMPLETION_INDEX": str(index),
                    "JAX_PROCESS_ID": str(index),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in (0, 1)
        ],
        300,
    )

    assert "done: 16 of 16 steps" in said[0][0], said
    assert said[1] == ("", "")


def test_command_of_tpu_pods_and_of_one_machine(project: Path, commands: Path) -> None:
    (project / "project").symlink_to(project)
    remote = shlex.split(block("$ gcloud").removeprefix("$ "))[-1]
    assert remote.startswith("--command=")
    remote = remote.removeprefix("--command=")
    local = block("$ roxxel train run.toml --processes").replace("$ ", "")
    # One worker is a process on its own.
    for script in (local.splitlines()[1], remote):
        command = ["bash", "-euc", script]
        subprocess.run(
            command,
            cwd=project,
            env=environment(commands),
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=600,
        )

    assert rows(project / "run")[-1]["step"] == 16


def test_groups_of_the_hybrid_mesh_are_halves_of_the_processes(
    project: Path, commands: Path
) -> None:
    with (project / "run.toml").open("a") as config:
        config.write(f"\n{block('[mesh]')}")

    done = subprocess.run(
        [str(commands / "roxxel"), "train", "run.toml", "--processes", "2"],
        cwd=project,
        env=environment(commands),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "done: 16 of 16 steps" in done.stdout
