"""A model function that asks for the steps or the phases of its run."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel.config import load_config
from roxxel_train import RunFolder

from .helpers import make_model
from .runs import CONFIG, write_project

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULED = """
import optax
from flax import nnx
from tiny import loss


def make(total_steps, phases, width=2):
    assert phases[-1].stop == total_steps
    model = nnx.Embed(50, width, rngs=nnx.Rngs(0))
    model.seen = (total_steps, max(p.seq_len for p in phases))
    rate = optax.linear_schedule(1.0, 0.0, total_steps)
    made = optax.inject_hyperparams(optax.sgd)(learning_rate=rate)
    return model, nnx.Optimizer(model, made, wrt=nnx.Param), loss
"""
TEXT = CONFIG.replace("tiny:make", "scheduled:make")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = write_project(tmp_path / "project", TEXT)
    (path.parent / "scheduled.py").write_text(SCHEDULED)
    return path


def rates(run: Path) -> list[float]:
    rows, _ = RunFolder(run).rows()
    return [row["learning_rate"] for row in rows if row["kind"] == "train"]


def test_the_learning_rate_follows_when_a_run_is_extended(config: Path) -> None:
    run = config.parent / "run"
    assert main(["train", str(config)]) == 0
    expected = [1 - step / 6 for step in range(6)]
    assert rates(run) == pytest.approx(expected, rel=1e-5)

    assert main(["train", str(config), "--set", "phases.1.steps=6"]) == 0

    expected += [1 - step / 10 for step in range(6, 10)]
    assert rates(run) == pytest.approx(expected, rel=1e-5)


def test_the_config_may_fix_the_steps(config: Path) -> None:
    run = config.parent / "run"
    (config.parent / "scheduled.py").write_text(
        SCHEDULED.replace("    assert phases[-1].stop == total_steps\n", "")
    )

    assert main(["train", str(config), "--set", "model_args.total_steps=12"]) == 0

    assert rates(run) == pytest.approx([1 - step / 12 for step in range(6)], rel=1e-5)


def test_a_model_is_made_again_without_its_corpora(config: Path) -> None:
    assert main(["train", str(config)]) == 0
    assert make_model(load_config(config)).seen == (6, 16)
    for corpus in config.parent.glob("*.rox"):
        shutil.rmtree(corpus) if corpus.is_dir() else corpus.unlink()

    assert open_run(config.parent / "run").model().seen == (6, 16)
