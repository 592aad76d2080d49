"""A run, the commands and the report name the same checkpoint as the best."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from roxxel import Curriculum, Phase, Roxxel, Trainer
from roxxel.checkpoint import Checkpointer
from roxxel.cli import main
from roxxel.report import write_report

if TYPE_CHECKING:
    from pathlib import Path

BEST = 2


def loss_fn(model: Any, batch: Any) -> Any:
    return jnp.square(model(batch) - 1.0).mean()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of 4 checkpoints whose score is lowest where the loss is not."""
    corpus = Roxxel(tmp_path / "web_*.rox")
    corpus.write((np.arange(40) % 7 for _ in range(8)), vocab_size=7)
    model = nnx.Embed(7, 2, rngs=nnx.Rngs(0))
    Trainer(
        model,
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param),
        Curriculum(corpus, [Phase(4, 2, 8)]),
        loss_fn,
        tmp_path / "run",
        eval_fn=lambda state: {"score": abs(int(state.step[...]) - BEST)},
        eval_every=1,
        checkpoint_every=1,
        max_to_keep=1,
        best_metric="score",
    ).run()
    return tmp_path / "run"


def test_run_keeps_the_checkpoint_of_its_best_metric(run: Path) -> None:
    reading = Checkpointer(run / "checkpoints", nnx.Embed(7, 2, rngs=nnx.Rngs(0)))

    assert reading.steps() == [BEST, 4]
    assert reading.best_step == BEST


def test_command_marks_the_checkpoint_that_the_run_kept(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ckpt", "ls", str(run / "checkpoints"), "--json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    marks = {row["step"]: row["marks"] for row in rows}
    assert marks == {BEST: ["best"], 4: ["newest"]}


def test_report_marks_the_checkpoint_that_the_run_kept(run: Path) -> None:
    write_report(run, run / "report.html")

    html = (run / "report.html").read_text()
    assert f"<td>{BEST}</td><td class=left>best score</td>" in html
    assert "<td>4</td><td class=left>newest</td>" in html
