"""OLMo-core trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# OLMo-core is in the environment of the session `bridges` alone.

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, Phase, StateMismatch
from roxxel_curriculum.olmo import StepLoader
from roxxel_format import Roxxel

from . import blended

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = str(Path(__file__).parent / "olmo_run.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("olmo")
    blended.write(folder)
    return folder


def train(
    folder: Path, run: str, kill: int = -1, launcher: Sequence[str] = ()
) -> tuple[int, dict[int, str]]:
    """Train; return the exit code and the losses, in full, by step."""
    seen = folder / f"{run}-seen"
    seen.mkdir(exist_ok=True)
    arguments = [folder, folder / run, seen, kill]
    losses = seen / "losses.txt"
    losses.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, *launcher, PROGRAM, *map(str, arguments)], check=False
    )
    lines = losses.read_text().splitlines() if losses.exists() else []
    return done.returncode, {int(n): loss for n, loss in map(str.split, lines)}


def num_masked(folder: Path, run: str, steps: range, ranks: int = 1) -> int:
    """Check what the trainer got; return how many labels are not learned."""
    curriculum = blended.curriculum_of(folder)
    sampler = curriculum.sampler(blended.SEED, fields=("tokens", "loss_mask"))
    count = 0
    for step in steps:
        wanted = sampler.batch(step)
        files = [folder / f"{run}-seen" / f"{step}-{rank}.npz" for rank in range(ranks)]
        found = [np.load(file) for file in files]
        tokens = np.concatenate([each["input_ids"] for each in found])
        labels = np.concatenate([each["labels"] for each in found])
        assert np.array_equal(tokens, wanted["tokens"][:, :-1])
        learned = np.where(wanted["loss_mask"] == 0, -100, wanted["tokens"])
        assert np.array_equal(labels, learned[:, 1:])
        count += int((labels == -100).sum())
    return count


def test_olmo_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    folder: Path,
) -> None:
    code, whole = train(folder, "whole")
    assert code == 0
    assert [*whole] == [*range(10)]
    assert num_masked(folder, "whole", range(10)) > 0
    logged = blended.losses_of_log(folder / "whole" / "log", folder)
    assert {step: repr(loss) for step, loss in logged.items()} == whole

    assert train(folder, "killed", kill=7)[0] == -signal.SIGKILL
    code, resumed = train(folder, "killed")
    assert code == 0
    assert min(resumed) > 0
    assert resumed == {step: whole[step] for step in range(min(resumed), 10)}
    blended.losses_of_log(folder / "killed" / "log", folder)


def test_two_ranks_go_on_where_one_stopped(folder: Path) -> None:
    assert train(folder, "one", kill=7)[0] == -signal.SIGKILL
    saved = max(int(path.name[4:]) for path in (folder / "one").glob("step*"))
    shutil.rmtree(folder / "one-seen")

    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, _ = train(folder, "one", launcher=ranks)

    assert code == 0
    num_masked(folder, "one", range(saved, 10), ranks=2)
    blended.losses_of_log(folder / "one" / "log", folder)


def test_a_run_is_read_once_and_only_by_its_own_loader(folder: Path) -> None:
    corpus = Roxxel(folder / "prose.rox")
    curriculum = Curriculum(corpus, [Phase(2, 4, 17)])
    loader = StepLoader(curriculum, folder, seed=3)
    loader.reshuffle(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    loader.reset()

    with pytest.raises(ValueError, match="batch size scheduler"):
        loader.global_batch_size = 128
    with pytest.raises(ValueError, match="total_batches"):
        loader.reshuffle(2)
    with pytest.raises(StateMismatch, match="seed"):
        StepLoader(curriculum, folder, seed=4).load_state_dict(state)
    longer = StepLoader(Curriculum(corpus, [Phase(5, 4, 17)]), folder, seed=3)
    longer.load_state_dict(state)
    longer.reshuffle(2)
    assert len([*longer]) == 4
