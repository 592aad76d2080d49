"""MaxText trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# MaxText is in the environment of the session `bridges` alone.

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from . import blended

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).parent / "maxtext_run.py"


class Trained(NamedTuple):
    """What a start of MaxText left: its exit code, last words and losses by step."""

    code: int
    error: str
    losses: dict[int, float]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Trained]:
    folder = tmp_path_factory.mktemp("maxtext")
    blended.write(folder)
    (folder / "seen").mkdir()

    def start(run: str, kill: int = -1, rows: int = 8) -> Trained:
        log = folder / f"{run}.jsonl"
        log.unlink(missing_ok=True)
        settings = (
            f"base_output_directory={folder / run}",
            f"per_device_batch_size={rows}",
            f"metrics_file={log}",
        )
        done = subprocess.run(
            [sys.executable, PROGRAM, folder, folder / "seen", str(kill), *settings],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = log.read_text().splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines]
        losses = {int(row["step"]): row["learning/loss"] for row in found}
        return Trained(done.returncode, done.stderr, losses)

    return start


def test_maxtext_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    train: Callable[..., Trained], tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = train("whole")
    assert whole.code == 0
    assert [*whole.losses] == [*range(10)]
    [seen] = tmp_path_factory.getbasetemp().glob("maxtext*/seen")
    fields = ("tokens", "positions", "segment_ids", "loss_mask")
    curriculum = blended.curriculum_of(seen.parent)
    sampler = curriculum.sampler(blended.SEED, fields=fields)
    num_masked = 0
    for step in range(10):
        wanted, found = sampler.batch(step), np.load(seen / f"{step}.npz")
        assert np.array_equal(found["inputs"], wanted["tokens"][:, :-1])
        assert np.array_equal(found["targets"], wanted["tokens"][:, 1:])
        assert np.array_equal(found["inputs_position"], wanted["positions"][:, :-1])
        is_masked = wanted["loss_mask"][:, 1:] == 0
        learned = np.where(is_masked, 0, wanted["segment_ids"][:, 1:])
        assert np.array_equal(found["targets_segmentation"], learned)
        num_masked += is_masked.sum()
    assert num_masked

    assert train("killed", kill=5).code == -signal.SIGKILL
    resumed = train("killed")
    assert resumed.code == 0
    assert resumed.losses == {step: whole.losses[step] for step in range(5, 10)}


def test_maxtext_refuses_a_phase_that_it_would_cut(
    train: Callable[..., Trained],
) -> None:
    refused = train("cut", rows=4)

    assert refused.code == 1
    assert "only the first 4 rows" in refused.error
