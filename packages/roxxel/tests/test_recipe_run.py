"""Runs with a recipe: the end moves, a cooldown branches off, averages are used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel_train import RunFolder

from .runs import LLAMA, said, write_project
from .test_plan import make_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

MADE = """
from flax import nnx
from roxxel.models import RecipeOptimizer
from tiny import loss


def make(total_steps, **recipe):
    model = nnx.Embed(50, 2, rngs=nnx.Rngs(0))
    return model, RecipeOptimizer(model, total_steps, **recipe), loss
"""
CONFIG = """
model = "made:make"
save_path = "run"

[sources]
self = "web_*.rox"

[[phases]]
steps = 8
batch_size = 2
seq_len = 8

[model_args]
optimizer = "sgd"
schedule = "wsd"
peak_rate = 1.0
warmup = 2
decay = 0.25
final_share = 0.0
ema = 0.5

[trainer]
log_every = 1
checkpoint_every = 4

[eval]
sources = { self = "held_out.rox" }
phases = [{ steps = 1, batch_size = 2, seq_len = 8 }]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = write_project(tmp_path, CONFIG)
    (tmp_path / "made.py").write_text(MADE)
    return path


def rates(run: Path) -> list[float]:
    rows = RunFolder(run).rows()[0]
    return [row["learning_rate"] for row in rows if row["kind"] == "train"]


def warnings(run: Path) -> str:
    entries = RunFolder(run).log()
    return "\n".join(each.text for each in entries if each.level == "WARNING")


def test_a_run_is_extended_and_a_branch_cools_down(config: Path) -> None:
    run, branch = config.parent / "run", config.parent / "cool"
    assert main(["train", str(config)]) == 0
    assert rates(run) == pytest.approx([0, 0.5, 1, 1, 1, 1, 1, 0.5])

    # The share moves with the end, and the log says both rates of the next update.
    assert main(["train", str(config), "--set", "phases.0.steps=12"]) == 0
    assert rates(run)[8:] == pytest.approx([1, 1, 2 / 3, 1 / 3])
    assert "step 8: the learning rate of the next update is 1;" in warnings(run)
    assert "it would be 0." in warnings(run)
    assert "branch from a checkpoint before the decay" in warnings(run)

    change = ["save_path=cool", "phases.0.steps=8", "model_args.decay_from=4"]
    sets = [x for each in change for x in ("--set", each)]
    without = config.with_name("cooldown.toml")
    without.write_text(CONFIG.replace("decay = 0.25\n", ""))
    assert main(["train", str(without), *sets, "--branch", f"{run}@4"]) == 0
    assert rates(branch) == pytest.approx([1, 0.75, 0.5, 0.25])
    assert "learning rate" not in warnings(branch)


def test_a_run_that_goes_on_after_its_decay_says_so(config: Path) -> None:
    run = config.parent / "run"
    fixed = ["--set", "model_args.total_steps=8"]

    def lines() -> list[str]:
        texts = [each.text for each in RunFolder(run).log()]
        return [text for text in texts if "has decayed" in text]

    assert main(["train", str(config), *fixed]) == 0
    assert lines() == []

    assert main(["train", str(config), *fixed, "--set", "phases.0.steps=12"]) == 0
    (line,) = lines()
    assert "decayed to 0 by step 8, and stays there for 4 steps" in line
    assert "branch from a checkpoint before the decay" in line


def test_held_out_losses_and_the_model_of_a_run_are_of_the_averaged_weights(
    config: Path,
) -> None:
    assert main(["train", str(config)]) == 0
    run = open_run(config.parent / "run")

    averaged = np.asarray(run.model().embedding[...])

    last = run.checkpoints[-1].step
    weights = weights_of(run, last)
    assert not np.allclose(averaged, weights)
    held_out = [row["eval_loss"] for row in run.metrics if row["kind"] == "eval"]
    batch = batch_of(config)
    assert held_out[-1] == pytest.approx(np.square(averaged[batch] - 1).mean())


def weights_of(run: Any, step: int) -> Any:
    """Return the weights that were trained, without the optimizer."""
    from flax import nnx

    model = nnx.Embed(50, 2, rngs=nnx.Rngs(0))
    return np.asarray(run.model(step, model).embedding[...])


def batch_of(config: Path) -> Any:
    from roxxel.config import load_config, open_eval_curriculum

    held_out: Any = open_eval_curriculum(load_config(config))
    return held_out.sampler(0).batch(0)


def test_new_weights_begin_a_new_average(config: Path) -> None:
    assert main(["train", str(config)]) == 0
    sets = ["save_path=b", "trainer.init_from=run@4", "model_args.peak_rate=0.0"]
    changes = [x for each in sets for x in ("--set", each)]
    free = ["--set", "model_args.optimizer=schedule_free_sgd"]
    free += ["--set", "model_args.ema=0.0"]

    assert main(["train", str(config), *changes, *free]) == 0

    begun = weights_of(open_run(config.parent / "run"), 4)
    found = open_run(config.parent / "b").model().embedding[...]
    np.testing.assert_allclose(found, begun, rtol=1e-5)


def test_another_optimizer_of_a_run_begins_with_the_weights_of_the_run(
    config: Path,
) -> None:
    changes = ["model_args.ema=0.0", "phases.0.steps=4"]
    assert main(["train", str(config), *set_each(*changes)]) == 0
    run = open_run(config.parent / "run")
    free = "model_args.optimizer=schedule_free_sgd"
    changes = ["model_args.ema=0.0", free, "model_args.peak_rate=0.0"]

    assert main(["train", str(config), *set_each(*changes)]) == 0

    np.testing.assert_allclose(
        run.model().embedding[...], weights_of(run, 4), rtol=1e-5
    )


def set_each(*changes: str) -> list[str]:
    return [x for each in changes for x in ("--set", each)]


def test_a_plan_says_both_rates_where_an_extension_changes_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = LLAMA.format(steps=12).replace("total_steps = 8\n", "")
    config = write_project(tmp_path, text)
    make_checkpoint(tmp_path / "run", config, 6)
    longer = [config, "--set", "phases.0.steps=24", "--diff", tmp_path / "run"]

    shown = said(capsys, "plan", *longer)
    rates = json.loads(said(capsys, "plan", *longer, "--json"))["learning_rates"]

    # A twelfth of the run warms up; then half a wave from 6e-4 to a tenth.
    expected = [
        6e-4 * (0.1 + 0.45 * (1 + np.cos(np.pi * (6 - warmup) / (total - warmup))))
        for total, warmup in ((12, 1), (24, 2))
    ]
    assert rates == pytest.approx(expected)
    assert "learning rate after 6 steps: 0.0003" in shown
    same = said(capsys, "plan", config, "--diff", tmp_path / "run")
    assert "learning rate" not in same
