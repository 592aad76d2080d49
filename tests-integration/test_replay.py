"""Replays on several devices, on two processes, and of a run in a bucket, are exact."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from roxxel import Roxxel, open_run
from roxxel.runs._receipts import (
    REPLAY_RECEIPTS,
    Environment,
    Equality,
    ReplayReceipt,
    TheRun,
)
from roxxel_train import local

from .buckets import running_bucket
from .conftest import SEVERAL_PROCESSES, environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

CONFIG = """\
model = "roxxel.models:llama"
save_path = "{save_path}"

[sources]
self = "{corpus}"

[[phases]]
steps = 14
batch_size = 16
seq_len = 33

[model_args]
total_steps = 14
preset = "tiny"
vocab_size = 64
width = 16
num_heads = 2
num_layers = 1
hidden = 24
context = 64

[trainer]
log_every = 1
checkpoint_every = 4
max_to_keep = 9
grad_accum_steps = 2
fields = ["tokens", "segment_ids", "positions", "loss_mask"]

[without]
self = {without}
"""


class Project:
    """A run, and a second one from scratch that never learns five late documents."""

    def __init__(self, folder: Path, cache: Path, devices: int) -> None:
        self.folder, self._environment = folder, environment(devices, cache)

    def write(self, place: str = "", processes: str = "1") -> str:
        """Train both runs; return the numbers of the documents."""
        random = np.random.default_rng(0)
        documents = [random.integers(0, 64, 24) for _ in range(300)]
        where = place or str(self.folder)
        corpus = f"{where}/web_*.rox"
        Roxxel(corpus).write(documents, vocab_size=64)
        text = CONFIG.format(save_path=f"{where}/run", corpus=corpus, without="[]")
        (self.folder / "run.toml").write_text(text)
        self.roxxel("train", "run.toml", "--processes", processes)
        late = [
            number for number in range(300) if self._is_late(f"{where}/run", number)
        ]
        text = CONFIG.format(save_path="scratch", corpus=corpus, without=late[:5])
        (self.folder / "scratch.toml").write_text(text)
        self.roxxel("train", "scratch.toml", "--processes", processes)
        return ",".join(map(str, late[:5]))

    def _is_late(self, run: str, number: int) -> bool:
        opened = open_run(run)
        corpus: Any = opened.corpora()["self"]
        start, stop, _ = corpus.document_range(number)
        first = next(opened.sampler().where("self", start, stop), None)
        return first is not None and 8 <= first.step < 12

    def roxxel(self, *arguments: str) -> str:
        """Run the command; return what it printed."""
        done = subprocess.run(
            [forked.commands() / "roxxel", *arguments],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def replay(self, run: str, numbers: str, *options: str) -> dict[str, Any]:
        said = self.roxxel(
            "replay", run, "--without", f"self:{numbers}", "--json", *options
        )
        return json.loads(said.splitlines()[-1])

    def differing(self, branch: str) -> list[str]:
        """Return the arrays of a branch that differ from those of the scratch run."""
        pair = "scratch/checkpoints", f"{branch}/checkpoints"
        done = forked.run(
            [sys.executable, "-m", "roxxel", "ckpt", "diff", "--values", *pair],
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        assert "leaves equal" in lines[-1], done.stderr
        return [x for x in lines if x[2:].startswith(("model/", "optimizer/"))]


def check_exact(project: Project, found: dict[str, Any]) -> None:
    """Check that the control is the run, and the branch the run from scratch."""
    assert (found["start"]["step"], found["comparison"]["is_equal"]) == (8, True)
    [branch] = found["branches"]
    assert branch["distance"] > 0
    assert project.differing(branch["folder"]) == []


def test_a_replay_on_8_devices_with_accumulation_is_exact(
    tmp_path: Path, compilation_cache: Path
) -> None:
    project = Project(tmp_path, compilation_cache, 8)
    numbers = project.write()

    check_exact(project, project.replay("run", numbers))


@SEVERAL_PROCESSES
def test_a_replay_on_two_processes_is_exact_and_so_is_its_receipt(
    tmp_path: Path, compilation_cache: Path
) -> None:
    project = Project(tmp_path, compilation_cache, 1)
    numbers = project.write(processes="2")

    found = project.replay("run", numbers, "--processes", "2")

    check_exact(project, found)
    start = open_run(found["control"]["folder"]).files.newest_start
    assert start["processes"] == 2
    checked = project.roxxel("replay", "--check", found["receipt"], "--processes", "2")
    assert "holds, bit for bit" in checked


def test_a_replay_of_a_run_in_a_bucket_is_exact(
    tmp_path: Path, compilation_cache: Path
) -> None:
    with running_bucket(tmp_path / "server"):
        project = Project(tmp_path, compilation_cache, 1)
        numbers = project.write("s3://data")

        check_exact(project, project.replay("s3://data/run", numbers, "--out", "out"))


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_alone_does_not_keep_the_others_waiting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], failing: int
) -> None:
    program = tmp_path / "check.py"
    program.write_text(
        "import os, sys\n"
        "from roxxel.cli import main\n"
        f"fails = os.environ['JAX_PROCESS_ID'] == '{failing}'\n"
        "receipt = 'gone.json' if fails else sys.argv[1]\n"
        "sys.exit(main(['replay', '--check', receipt]))\n"
    )
    receipt = tmp_path / "replay.json"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"kind": "train", "step": 3}\n')
    written = ReplayReceipt(
        run=TheRun("run", None),
        without={},
        start=0,
        each=False,
        corpora={},
        checkpoint=None,
        environment=Environment({}, {}, [], 1, ""),
        control_is_the_run=Equality(
            None, is_equal=True, num_rows=0, first_difference=0
        ),
        branches={},
        losses={},
        distances={},
    )
    REPLAY_RECEIPTS.write(receipt, written)

    assert local.main([str(program), str(receipt)]) == 1

    out, err = capfd.readouterr()
    assert "gone.json: there is no such file" in out + err
    assert f"process {failing} failed: its program ended while other" in out + err
