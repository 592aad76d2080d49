"""MaxText trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# MaxText is in the environment of the session `bridges` alone.

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from . import blended

PROGRAM = Path(__file__).parent / "maxtext_run.py"


class Trained(NamedTuple):
    """What a start of MaxText left: its exit code, last words and losses by step."""

    code: int
    error: str
    losses: dict[int, float]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maxtext")
    blended.write(folder)
    return folder


def train(folder: Path, run: str, kill: int = -1, rows: int = 8) -> Trained:
    log, seen = folder / f"{run}.jsonl", folder / f"{run}-seen"
    log.unlink(missing_ok=True)
    seen.mkdir(exist_ok=True)
    settings = (
        f"base_output_directory={folder / run}",
        f"per_device_batch_size={rows}",
        f"metrics_file={log}",
    )
    done = subprocess.run(
        [sys.executable, PROGRAM, folder, seen, str(kill), *settings],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines]
    losses = {int(row["step"]): row["learning/loss"] for row in found}
    return Trained(done.returncode, done.stderr, losses)


def test_maxtext_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    folder: Path,
) -> None:
    whole = train(folder, "whole")
    assert whole.code == 0
    assert [*whole.losses] == [*range(10)]
    fields = ("tokens", "positions", "segment_ids", "loss_mask")
    curriculum = blended.curriculum_of(folder)
    sampler = curriculum.sampler(blended.SEED, fields=fields)
    num_masked = 0
    for step in range(10):
        wanted, found = (
            sampler.batch(step),
            np.load(folder / "whole-seen" / f"{step}.npz"),
        )
        assert np.array_equal(found["inputs"], wanted["tokens"][:, :-1])
        assert np.array_equal(found["targets"], wanted["tokens"][:, 1:])
        assert np.array_equal(found["inputs_position"], wanted["positions"][:, :-1])
        is_masked = wanted["loss_mask"][:, 1:] == 0
        learned = np.where(is_masked, 0, wanted["segment_ids"][:, :-1])
        assert np.array_equal(found["targets_segmentation"], learned)
        num_masked += is_masked.sum()
    assert num_masked
    logged = blended.losses_of_log(folder / "whole-seen" / "log", folder)
    for step, loss in logged.items():
        # MaxText saves after every second step, before the loss is known.
        assert loss == pytest.approx(whole.losses[step]) or step % 2 == 0, step

    assert train(folder, "killed", kill=5).code == -signal.SIGKILL
    resumed = train(folder, "killed")
    assert resumed.code == 0
    assert resumed.losses == {step: whole.losses[step] for step in range(5, 10)}
    blended.losses_of_log(folder / "killed-seen" / "log", folder)


def test_maxtext_refuses_a_phase_that_it_would_cut(
    folder: Path,
) -> None:
    refused = train(folder, "cut", rows=4)

    assert refused.code == 1
    assert "only the first 4 rows" in refused.error
