"""A run whose config names the primary source: every command shows the name."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from roxxel import Roxxel, open_run
from roxxel.cli import main
from roxxel.report import read_facts

from .runs import rows

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
import optax
from flax import nnx


def make():
    model = nnx.Embed(256, 256, rngs=nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), loss_fn


def loss_fn(model, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch["tokens"][:, :-1]), batch["tokens"][:, 1:]
    )
    return losses.mean(), {"row_loss": losses.mean(axis=1)}
"""

CONFIG = """\
model = "named:make"
save_path = "run"
primary = "web"

[sources]
web = "web_*.rox"
code = { path = "code.rox", policy = "repeat" }

[without]
web = [3]

[[phases]]
steps = 4
batch_size = 4
seq_len = 33
weights = { web = 0.5, code = 0.5 }

[trainer]
log_every = 1
checkpoint_every = 2
eval_every = 4
fields = ["tokens", "loss_mask"]

[eval]
sources = { web = "code.rox" }
phases = [{ steps = 1, batch_size = 2, seq_len = 9 }]
"""

PLAIN = CONFIG.replace('primary = "web"\n', "").replace("web =", "self =")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with two configs of one run; one gives its primary a name."""
    for name in ("web_*.rox", "code.rox"):
        documents = (f"document {n} of {name}. ".encode() * 9 for n in range(20))
        Roxxel(tmp_path / name).write(documents)
    masked = MODEL.replace(
        "losses.mean()", '(losses * batch["loss_mask"][:, 1:]).mean()'
    )
    (tmp_path / "named.py").write_text(masked)
    (tmp_path / "named.toml").write_text(CONFIG)
    (tmp_path / "plain.toml").write_text(PLAIN)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that succeeds, and return what it printed."""
    assert main(list(map(str, arguments))) == 0
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_every_command_shows_the_name_and_takes_no_other(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, plain, run = project / "named.toml", project / "plain.toml", project / "run"

    plan = said(capsys, "plan", config)
    assert "web     0.5" in plan
    assert "1 document of web is withdrawn" in plan
    assert "self" not in plan
    renamed = said(capsys, "plan", config, "--diff", plain)
    assert "every batch is the same" in renamed
    assert "the primary is named 'web' instead of 'self'" in renamed

    trained = said(capsys, "train", config)
    assert "web 50%, code 50%" in trained
    assert "self" not in trained + (run / "system.log").read_text()
    assert {"loss/web", "loss/code"} <= rows(run)[0].keys()

    shown = said(capsys, "show", run, "--step", 1)
    assert "web tokens [" in shown
    assert "self" not in shown
    place = said(capsys, "where", run, "--document", "web:5")
    assert place.startswith("web tokens [")
    tokens = said(capsys, "where", run, "--tokens", "web:[0,9)", "--json")
    assert json.loads(tokens)["source"] == "web"
    said(capsys, "verify", "--data", run, "--source", f"web={project}/web_*.rox")
    assert (
        main(["verify", "--data", str(run), "--source", f"self={project}/web_*.rox"])
        == 1
    )
    assert "the run has no source 'self'" in capsys.readouterr().err
    assert main(["where", str(run), "--document", "docs:1"]) == 1
    assert "its sources are 'web', 'code'" in capsys.readouterr().err

    said(capsys, "report", run, "--out", project / "report.html")
    assert re.search(r">\s*self\s*<", (project / "report.html").read_text()) is None
    facts = read_facts(run)
    assert [*facts.losses_by_source] == [*facts.tokens_by_source] == ["web", "code"]
    assert facts.phases[0].shares == {"code": 0.5, "web": 0.5}
    assert "self" not in facts.plan


def test_a_run_keeps_the_name_of_its_primary(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "train", project / "plain.toml")
    before = (project / "run" / "metrics.jsonl").read_bytes()
    longer = ["--set", "phases.0.steps=6"]

    assert main(["train", str(project / "named.toml"), *longer]) == 1

    assert "primary is named 'web' instead of 'self'" in capsys.readouterr().err
    assert (project / "run" / "metrics.jsonl").read_bytes() == before
    said(capsys, "verify", "--data", project / "run")
    assert open_run(project / "run").primary == "self"
    facts = read_facts(project / "run")
    for series in (facts.losses_by_source, facts.tokens_by_source, facts.shares):
        assert series.keys() == {"self", "code"}
