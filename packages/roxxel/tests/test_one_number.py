"""A quantity of a run is one number under one name, wherever it is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from roxxel import open_run
from roxxel.cli import main
from roxxel.config import load_config, make_trainer
from roxxel.report import page, read_facts

from .runs import CONFIG, write_project

if TYPE_CHECKING:
    from roxxel import Run

# Rows, evaluations and checkpoints at different steps, and some at one.
EVERY = {"log_every": 2, "eval_every": 3, "checkpoint_every": 3}
SETS = """
[eval.code]
path = "code.rox"
steps = 1
batch_size = 2
seq_len = 8

[eval.web]
path = "held_out.rox"
steps = 1
batch_size = 2
seq_len = 8
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train a run of two starts, the second of which takes nothing back."""
    text = CONFIG.partition("[eval]")[0] + SETS
    for name, count in EVERY.items():
        old = next(line for line in text.splitlines() if line.startswith(f"{name} ="))
        text = text.replace(old, f"{name} = {count}")
    config = load_config(write_project(tmp_path_factory.mktemp("one"), text))
    make_trainer(config).run(until=3)
    make_trainer(config).run()
    return open_run(str(config.run_folder))


def test_a_step_has_one_value_of_a_name_in_the_log_and_in_its_checkpoint(
    run: Run,
) -> None:
    logged: dict[int, dict[str, Any]] = {}
    for row in run.metrics:
        fields = logged.setdefault(row["step"], {})
        # An evaluation after an update has no name in common with the update.
        assert fields.keys() & row.keys() <= {"kind", "step", "time"}
        fields.update(row)

    common: set[str] = set()
    for each in run.checkpoints:
        names = each.metrics.keys() & logged[each.step].keys()
        common |= names
        for name in names:
            assert each.metrics[name] == logged[each.step][name], (each.step, name)
    assert {"loss", "grad_norm", "eval_loss", "eval_loss/code"} <= common


def test_ls_the_page_and_the_log_show_the_same_numbers(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["ls", str(run.path), "--json"])
    [listed] = json.loads(capsys.readouterr().out)
    facts = read_facts(run.files)

    rows = [[r for r in run.metrics if r["kind"] == kind] for kind in ("train", "eval")]
    train, evaluation = (each[-1] for each in rows)
    assert listed["loss"] == facts.train["loss"].last == train["loss"]
    assert listed["tokens_per_s"] == facts.train["tokens_per_s"].last
    assert listed["eval_loss"] == evaluation["eval_loss"]
    assert facts.evaluations["eval_loss"].last == evaluation["eval_loss"]
    assert (listed["step"], listed["total_steps"]) == (facts.step, facts.total_steps)
    assert listed["status"] == facts.status == "complete"
    assert listed["saved_step"] == max(each.step for each in run.checkpoints)
    assert facts.tokens == train["tokens"] == sum(train["tokens_by_source"].values())


def test_the_mean_over_the_sets_is_the_mean_of_their_losses(run: Run) -> None:
    evaluations = [row for row in run.metrics if row["kind"] == "eval"]

    assert len(evaluations) == 2
    for row in evaluations:
        mean = (row["eval_loss/code"] + row["eval_loss/web"]) / 2
        assert row["eval_loss"] == pytest.approx(mean)


def test_the_page_divides_the_time_of_training_in_one_way(run: Run) -> None:
    facts = read_facts(run.files)
    spent = facts.goodput

    # Nothing was trained twice, so all training is in steps that were kept.
    assert facts.seconds == pytest.approx(spent.steps + spent.waiting, abs=2e-3)
    waited = facts.wait_share * facts.seconds
    assert waited == pytest.approx(spent.waiting)
    assert spent == run.files.goodput()
    shown = page(facts)
    for name in ("compiling", "evaluating", "saving"):
        assert shown.partition("</header>")[0].count(name) <= 1, name
