"""A run trained again without some documents, and a control that is the run itself."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import Roxxel, open_run, replay
from roxxel.cli import main
from roxxel.config import ConfigError
from roxxel_train import RunFolderError

from .runs import said

if TYPE_CHECKING:
    from roxxel.replaying import Replay

MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx


def make():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Embed(64, 4, rngs=rngs), nnx.Linear(4, 64, rngs=rngs))
    return model, nnx.Optimizer(model, optax.adam(0.03), wrt=nnx.Param), loss


def loss(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    count = mask.sum()
    return (losses * mask).sum() / jnp.maximum(count, 1), {"loss_weight": count}
"""

CONFIG = """\
model = "tiny:make"
save_path = "run"
longest = 1000

[sources]
self = "web_*.rox"
code = "code.rox"

[[phases]]
steps = 36
batch_size = 8
seq_len = 17
weights = { self = 0.9, code = 0.1 }

[trainer]
log_every = 1
checkpoint_every = 6
max_to_keep = 9
fields = ["tokens", "loss_mask"]

[tokenizers]
self = "words"
code = "words"

[without]
self = []
"""

LONG = 20
"""The document that spans two shards; the run learns it in two epochs."""
UNREAD = 39
"""A document of `code` that no step reads."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a complete run, and checkpoints of steps 6, 12 ... 36."""
    folder = tmp_path_factory.mktemp("replay")
    random = np.random.default_rng(0)
    sizes = [60] * LONG + [1300] + [60] * 10
    Roxxel(folder / "web_*.rox").write(
        (random.integers(0, 64, size) for size in sizes),
        vocab_size=64,
        block_size=64,
        max_shard_bytes=6700,
    )
    Roxxel(folder / "code.rox").write(
        (random.integers(0, 64, 60) for _ in range(UNREAD + 1)), vocab_size=64
    )
    (folder / "tiny.py").write_text(MODEL)
    (folder / "run.toml").write_text(CONFIG)
    assert main(["train", str(folder / "run.toml")]) == 0
    return folder


@pytest.fixture(scope="module")
def found(project: Path) -> Replay:
    """Return the replay without the long document."""
    return replay(project / "run", {"self": [LONG]})


def different(a: Path, b: Path) -> list[str]:
    """Return the arrays of two newest checkpoints whose bits differ."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(["ckpt", "diff", "--values", str(a / "checkpoints"), f"{b}/checkpoints"])
    lines = printed.getvalue().splitlines()
    return [each for each in lines if each[2:].startswith(("model/", "optimizer/"))]


def test_the_document_spans_shards_and_epochs(project: Path) -> None:
    run = open_run(project / "run")
    start, stop, _ = run.corpora()["self"].document_range(LONG)  # pyright: ignore[reportAttributeAccessIssue] - a Roxxel

    places = list(run.sampler().where("self", start, stop))

    assert len(list(project.glob("web_0*.rox"))) > 1
    assert {place.epoch for place in places} == {0, 1}
    assert places[0].step > 6


def test_a_branch_is_bit_for_bit_a_run_that_never_learned_the_document(
    project: Path, found: Replay
) -> None:
    text = CONFIG.replace('"run"', '"scratch"').replace("= []", f"= [{LONG}]")
    (project / "scratch.toml").write_text(text)
    assert main(["train", str(project / "scratch.toml")]) == 0

    [branch] = found.branches

    assert different(project / "scratch", Path(branch.folder)) == []
    assert different(project / "run", Path(found.control.folder)) == []
    assert different(project / "run", Path(branch.folder)) != []


def test_the_report_says_what_was_trained_and_what_changed(found: Replay) -> None:
    [branch] = found.branches
    report = str(found)

    assert found.comparison.is_equal
    assert found.comparison.step == found.control.step == branch.step == 36
    assert found.start.first is not None
    assert 6 <= found.start.step <= found.start.first < found.start.step + 6
    assert f"step {found.start.first} learns it first" in report
    assert f"checkpoint before it is that of step {found.start.step}" in report
    assert "equals the run bit for bit at step 36" in report
    assert "no segment_ids" in report
    change = found.change(branch, "eval_loss/withdrawn")
    assert change is not None
    assert change > 0
    assert len(branch.losses["eval_loss/withdrawn"]) > 3
    assert branch.feed == found.control.feed
    assert branch.distance > 0


@pytest.fixture(scope="module")
def unread(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    """Return the replay without a document that no step reads."""
    out = tmp_path_factory.mktemp("unread")
    return replay(project / "run", {"code": [UNREAD]}, step=30, out=out)


def test_a_document_that_no_step_reads_changes_no_bit(
    project: Path, unread: Replay, tmp_path: Path
) -> None:
    with pytest.raises(RunFolderError, match=r"no step .* learns it.*--from STEP"):
        replay(project / "run", {"code": [UNREAD]}, out=tmp_path)

    [branch] = unread.branches
    assert branch.state == unread.control.state
    assert (branch.distance, unread.comparison.is_equal) == (0.0, True)
    assert "0: equal bit for bit" in str(unread)


def test_the_loss_on_a_short_text_is_not_that_of_snippets(unread: Replay) -> None:
    config = open_run(unread.control.folder).config
    assert config is not None
    [phase] = config.held_out["withdrawn"].schedule.phases

    # 60 tokens: four windows that share their ends, about as long as those of the run.
    assert (phase.steps, phase.batch_size, phase.seq_len) == (1, 4, 15)


def test_the_text_that_is_left_out_has_the_tokenizer_of_the_run(found: Replay) -> None:
    [branch] = found.branches

    assert "words" in Path(f"{branch.folder}.toml").read_text().split("[eval")[1]
    assert "may have other ids" not in Path(branch.folder, "system.log").read_text()


def test_branches_are_runs_that_the_other_commands_read(
    found: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    [branch] = found.branches
    listed = said(capsys, "ls", Path(branch.folder).parent)

    assert listed.count("complete") == 2
    shown = said(capsys, "where", branch.folder, "--document", f"self:{LONG}")
    assert f"document {LONG} is withdrawn from step {found.start.step} on" in shown
    assert open_run(branch.folder).parent is not None


def test_the_command_repeats_a_replay_and_checks_its_receipt(
    project: Path, found: Replay, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    again = said(capsys, "replay", project / "run", "--without", f"self:{LONG}")
    assert "equals the run bit for bit" in again
    # The branches that are there are complete, so the check only compares them.
    out = found.receipt.parent
    checked = said(capsys, "replay", "--check", found.receipt, "--out", out)
    assert "holds, bit for bit" in checked

    receipt = json.loads(found.receipt.read_text())
    receipt["branches"]["without"]["state"] = "0" * 64
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(receipt))
    arguments = ["replay", "--check", str(changed), "--out", str(out)]
    assert main(arguments) == 3
    printed = capsys.readouterr()
    assert "branches.without.state: 0000" in printed.out
    assert "compare the losses" in printed.err


def test_each_document_has_a_branch_and_a_place_in_the_table(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    numbers = f"code:{UNREAD},{UNREAD - 1}"
    command = ["replay", project / "run", "--without", numbers, "--each"]
    command += ["--from", "30", "--out", tmp_path]
    first = json.loads(said(capsys, *command, "--json"))
    shutil.rmtree(tmp_path / f"without-code-{UNREAD}")
    again = json.loads(said(capsys, *command, "--json"))

    assert [each["name"] for each in again["branches"]] == [
        each["name"] for each in first["branches"]
    ]
    assert {each["name"] for each in first["branches"]} == {
        f"code:{UNREAD}",
        f"code:{UNREAD - 1}",
    }
    states = [[each["state"] for each in x["branches"]] for x in (first, again)]
    assert states[0] == states[1]


def test_a_config_that_changed_after_the_start_is_followed_and_said(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    run = tmp_path / "run"
    [kept] = (run / "configs").iterdir()
    changed = kept.read_text().replace("log_every = 1", "log_every = 2")
    (run / "configs" / "step-33.toml").write_text(changed)
    out = tmp_path / "branches"
    options = ["--without", f"code:{UNREAD}", "--from", "30", "--out", out]

    printed = said(capsys, "replay", run, *options)

    assert "changed after step 30 (trainer.log_every was 1 and is 2)" in printed
    assert "log_every = 2" in (out / "control.toml").read_text()


@pytest.mark.parametrize(
    ("without", "options", "message"),
    [
        ({"self": [0]}, {}, "--from 0.*keep_every"),
        ({"self": [LONG]}, {"step": 36}, "has learned it before step 36"),
        ({"self": [LONG]}, {"step": 7}, "has no checkpoint of step 7"),
        ({"self": [LONG, 3]}, {"step": 0, "out": None}, "another --out"),
        ({"self": []}, {}, "nothing is left out"),
        ({"self": [LONG]}, {"out": "s3://data/x"}, "s3://data/x: .*on a disk"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    project: Path,
    found: Replay,
    without: Any,
    options: dict[str, Any],
    message: str,
) -> None:
    assert found.receipt.exists()
    options.setdefault("out", project / "other")
    with pytest.raises(RunFolderError, match=message):
        replay(project / "run", without, **options)


def test_the_command_refuses_in_one_sentence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(project / "run")
    wrong = {
        ("--without", "self:99"): "99",
        ("--without", "prose:1"): "no source 'prose'",
        ("--without-source", "prose"): "no source 'prose'",
        (): "--without-text",
    }
    for arguments, message in wrong.items():
        assert main(["replay", run, *arguments]) == 1
        assert message in capsys.readouterr().err
    assert main(["replay", "--check", str(project / "none.json")]) == 1
    assert "there is no such file" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="unknown source 'prose'"):
        replay(project / "run", {"prose": [1]})
