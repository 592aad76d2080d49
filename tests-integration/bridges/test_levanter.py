"""levanter trains the steps of a curriculum, in an environment of its own."""

# pyright: basic, reportMissingImports=false
# levanter is in the environment of the session `bridges` alone.

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from roxxel_curriculum import StateMismatch

from . import blended

PROGRAM = Path(__file__).parent / "levanter_run.py"
FIELDS = ("tokens", "segment_ids", "loss_mask")
SHORT, WHOLE = 6, 10
"""Steps at which the length of the run changes, and at which it ends."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levanter")
    blended.write(folder)
    return folder


def train(folder: Path, run: str, kill: int = -1) -> tuple[int, dict[int, str]]:
    """Train; return the exit code and the losses, in full, by step."""
    seen = folder / f"{run}-seen"
    seen.mkdir(exist_ok=True)
    losses = seen / "losses.txt"
    losses.unlink(missing_ok=True)
    arguments = [str(each) for each in (folder, folder / run, seen, kill)]
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    lines = losses.read_text().splitlines() if losses.exists() else []
    return done.returncode, {int(n): loss for n, loss in map(str.split, lines)}


def num_masked(folder: Path, run: str) -> int:
    """Check what the model got; return how many targets are not learned."""
    sampler = blended.curriculum_of(folder).sampler(blended.SEED, fields=FIELDS)
    count = 0
    for step in range(WHOLE):
        wanted = sampler.batch(step)
        found = np.load(folder / f"{run}-seen" / f"{step}.npz")
        assert np.array_equal(found["tokens"], wanted["tokens"])
        assert np.array_equal(found["segments"], wanted["segment_ids"] - 1)
        # The weight stands at the token before the one that it is about.
        assert np.array_equal(found["weights"][:, :-1], wanted["loss_mask"][:, 1:])
        assert not found["weights"][:, -1].any()
        count += int((wanted["loss_mask"] == 0).sum())
    return count


def test_levanter_gets_the_batches_of_the_sampler_and_resumes_bit_for_bit(
    folder: Path,
) -> None:
    code, short = train(folder, "whole")
    assert (code, [*short]) == (0, [*range(SHORT)])
    shutil.copytree(folder / "whole", folder / "killed")
    code, long = train(folder, "whole")
    assert (code, [*long]) == (0, [*range(SHORT, WHOLE)])
    assert num_masked(folder, "whole") > 0
    logged = blended.losses_of_log(folder / "whole" / "log", folder)
    assert {step: repr(loss) for step, loss in logged.items()} == short | long

    assert train(folder, "killed", kill=8)[0] == -signal.SIGKILL
    code, resumed = train(folder, "killed")
    assert code == 0
    first = min(resumed)
    assert first >= SHORT
    assert resumed == {step: long[step] for step in range(first, WHOLE)}
    blended.losses_of_log(folder / "killed" / "log", folder)


@pytest.fixture
def fed(folder: Path) -> Any:
    """Return a function that feeds a config with settings of a trainer."""

    def fed(max_seq_len: int = 129, seed: int = blended.SEED, **trainer: Any) -> Any:
        # levanter warns when it is imported, and a warning is an error here.
        of = importlib.import_module
        config = of("levanter.main.train_lm").TrainLmConfig(
            trainer=of("levanter.trainer").TrainerConfig(**trainer),
            model=of("levanter.models.llama").LlamaConfig(max_seq_len=max_seq_len),
        )
        feed = of("roxxel_loader.bridges.levanter").feed
        log = folder / "killed" / "log"
        return feed(config, blended.curriculum_of(folder), seed, record=log)

    return fed


@pytest.mark.filterwarnings("ignore")
def test_levanter_refuses_what_would_read_other_batches(fed: Any) -> None:
    with pytest.raises(ValueError, match="set max_seq_len to 129"):
        fed(128, id="r")
    with pytest.raises(ValueError, match=r"trainer\.id is None"):
        fed()


@pytest.mark.filterwarnings("ignore")
def test_a_log_of_another_past_is_refused(folder: Path, fed: Any) -> None:
    if not (folder / "killed" / "log").exists():
        train(folder, "killed")
    checkpoints = f"{folder}/killed/checkpoints/r"

    with pytest.raises(StateMismatch, match="seed"):
        fed(seed=blended.SEED + 1, id="r", load_checkpoint_path=checkpoints)
