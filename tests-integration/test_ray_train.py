"""The job of the guide's section about Ray Train, on two raylets of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from roxxel_train import RunFolder

from .conftest import SEVERAL_PROCESSES, simulated
from .ray_cluster import running_cluster
from .runs import write_small_project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    SEVERAL_PROCESSES,
    pytest.mark.filterwarnings("default"),  # Ray warns of itself
    pytest.mark.long,
]

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "cluster.md"
[JOB] = re.findall(
    r"^```python\n(import os\n.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE
)

# What an evaluation does to process 1 in the first two starts of a run.
ACCIDENTS = """\
import os
import signal
import time
from pathlib import Path

import jax

def act(state):
    if jax.process_index() != 1:
        return
    folder = Path(__file__).parent
    for step, saved, name in ((8, 5, "failed"), (12, 10, "killed")):
        done = folder / name
        if int(state.step) == step and not done.exists():
            while not (folder / "run" / "checkpoints" / str(saved)).exists():
                time.sleep(0.01)
            done.touch()
            if name == "failed":
                raise OSError("the disk is gone")
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of two raylets with a core each; a job finds it by the environment."""
    for name, value in simulated(1).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray records its jobs
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    # On a busy machine the workers import for longer than the default.
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    with running_cluster() as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield


@pytest.mark.usefixtures("cluster")
def test_job_of_the_guide_goes_on_after_a_failed_and_a_killed_worker(
    tmp_path: Path,
) -> None:
    project = write_small_project(tmp_path / "project")
    config = project / "run.toml"
    with_accidents = 'eval_fn = "accidents:act"\neval_every = 4'
    config.write_text(config.read_text().replace("eval_every = 8", with_accidents))
    (project / "accidents.py").write_text(ACCIDENTS)
    (project / "job.py").write_text(JOB)

    job = subprocess.run(
        [sys.executable, "job.py", "run.toml"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    said = job.stdout + job.stderr
    assert job.returncode == 0, said
    assert "{'step': 16, 'loss': " in job.stdout
    starts = RunFolder(project / "run").starts()
    assert [start.step for start in starts] == [0, 5, 10]
    assert [start.row["processes"] for start in starts] == [2, 2, 2]
    of_ray = [line for line in said.splitlines() if "(TrainController" in line]
    assert any("OSError: the disk is gone" in line for line in of_ray), said
    for reason in ("OSError: the disk is gone", "killed or crashed"):
        log = (project / "run" / "system.log").read_text()
        assert re.search(f"the run ends: process 1 failed: {reason}", log)
