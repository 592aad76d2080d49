"""torchtitan trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# torchtitan is in the environment of the session `bridges` alone.

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase, StateMismatch
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.torchtitan import StepLoader
from roxxel_format import Roxxel

from . import blended

PROGRAM = str(Path(__file__).parent / "torchtitan_run.py")
FIELDS = ("tokens", "positions", "loss_mask")


class Trained(NamedTuple):
    """What a start left: its exit code, last words, and losses in full by step."""

    code: int
    error: str
    losses: dict[int, str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("titan")
    blended.write(folder)
    return folder


def train(
    folder: Path, run: str, *options: str, kill: int = -1, ranks: int = 1, rows: int = 4
) -> Trained:
    seen = folder / f"{run}-seen"
    seen.mkdir(exist_ok=True)
    losses = seen / "losses.txt"
    losses.unlink(missing_ok=True)
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    arguments = [str(each) for each in (folder, folder / run, seen, kill)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", *launcher, PROGRAM, *arguments),
            *(f"--training.local_batch_size={rows}", *options),
        ],
        env={**os.environ, "TORCHDYNAMO_DISABLE": "1"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = losses.read_text().splitlines() if losses.exists() else []
    found = {int(n): loss for n, loss in map(str.split, lines)}
    return Trained(done.returncode, done.stderr, found)


def num_masked(folder: Path, run: str, steps: range, ranks: int = 1) -> int:
    """Check what the model got; return how many labels are not learned."""
    sampler = blended.curriculum_of(folder).sampler(blended.SEED, fields=FIELDS)
    count = 0
    for step in steps:
        wanted = sampler.batch(step)
        files = [folder / f"{run}-seen" / f"{step}-{rank}.npz" for rank in range(ranks)]
        found = [np.load(file) for file in files]
        names = ("input", "positions", "labels")
        tokens, positions, labels = (
            np.concatenate([each[name] for each in found]) for name in names
        )
        assert np.array_equal(tokens, wanted["tokens"][:, :-1])
        assert np.array_equal(positions, wanted["positions"][:, :-1])
        learned = np.where(wanted["loss_mask"] == 0, -100, wanted["tokens"])
        assert np.array_equal(labels, learned[:, 1:])
        count += int((labels == -100).sum())
    return count


def test_torchtitan_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    folder: Path,
) -> None:
    whole = train(folder, "whole")
    assert whole.code == 0, whole.error
    assert [*whole.losses] == [*range(10)]
    assert num_masked(folder, "whole", range(10)) > 0
    logged = blended.losses_of_log(folder / "whole" / "log", folder)
    assert {step: repr(loss) for step, loss in logged.items()} == whole.losses

    assert train(folder, "killed", kill=7).code != 0
    resumed = train(folder, "killed")
    assert resumed.code == 0, resumed.error
    first = min(resumed.losses)
    assert 0 < first <= 7
    assert resumed.losses == {step: whole.losses[step] for step in range(first, 10)}
    blended.losses_of_log(folder / "killed" / "log", folder)


def test_two_ranks_go_on_where_one_stopped(folder: Path) -> None:
    assert train(folder, "one", kill=7).code != 0
    saved = max(
        int(path.name[5:]) for path in (folder / "one" / "checkpoint").glob("step-*")
    )
    shutil.rmtree(folder / "one-seen")

    done = train(folder, "one", ranks=2, rows=2)

    assert done.code == 0, done.error
    num_masked(folder, "one", range(saved, 10), ranks=2)
    blended.losses_of_log(folder / "one" / "log", folder)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--training.seq_len=64", "set training.seq_len to 128"),
        ("--training.global_batch_size=64", "the 16 micro batches"),
        ("--training.steps=12", "set training.steps to 10"),
    ],
)
def test_torchtitan_refuses_what_would_read_other_batches(
    folder: Path, option: str, words: str
) -> None:
    refused = train(folder, option.strip("-"), option)

    assert refused.code != 0
    assert words in refused.error


def test_a_state_of_another_run_is_refused(folder: Path) -> None:
    curriculum = Curriculum(Roxxel(folder / "prose.rox"), [Phase(4, 4, 17)])
    loader = StepLoader(StepIterator(curriculum, 3, fields=FIELDS), parts=2)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()

    other = StepLoader(StepIterator(curriculum, 4, fields=FIELDS), parts=2)
    with pytest.raises(StateMismatch, match="seed"):
        other.load_state_dict(state)
    same = StepLoader(StepIterator(curriculum, 3, fields=FIELDS), parts=4)
    same.load_state_dict(state)
    assert same.steps.step == 2
