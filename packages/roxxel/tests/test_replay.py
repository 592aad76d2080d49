"""A run trained again without some documents, and a control that is the run itself."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from roxxel import Roxxel, check_replay, open_run, replay, verify
from roxxel.cli import main
from roxxel.config import ConfigError
from roxxel.replaying._branches import file_name
from roxxel.replaying._effects import norm
from roxxel_train import RunFolderError

from .runs import facts, forge, forged, said

if TYPE_CHECKING:
    from collections.abc import Sequence

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
checkpoint_every = 3
max_to_keep = 12
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
    """Return a folder with a complete run, and checkpoints of steps 3, 6 ... 36."""
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

    assert len(list(project.glob("web_*.rox"))) > 1
    assert {place.epoch for place in places} == {0, 1}
    assert places[0].step == 8  # a checkpoint lies right behind it


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
    assert 6 <= found.start.step <= found.start.first < found.start.step + 3
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
    with pytest.raises(RunFolderError, match=r"no step .* learns it.*--step STEP"):
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


def test_the_command_repeats_a_replay_without_a_word_of_python(
    project: Path, found: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    before = found.receipt.read_text()

    assert main(["replay", str(project / "run"), "--without", f"self:{LONG}"]) == 0

    printed = capsys.readouterr()
    assert "equals the run bit for bit" in printed.out
    assert "exist=" not in printed.err
    # What a receipt says does not depend on the call.
    assert found.receipt.read_text() == before


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which receipts are checked, so it is trained once."""
    return tmp_path_factory.mktemp("again")


def test_a_check_names_whatever_a_receipt_does_not_hold(
    project: Path, found: Replay, again: Path, tmp_path: Path
) -> None:
    def checked(*paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return what does not hold, and what is said of another environment."""
        notes: list[str] = []
        receipt = forged(found.receipt, tmp_path / "receipt.json", *paths)
        lines = check_replay(receipt, project / "run", out=again, say=notes.append)
        return lines, [note.replace("note: ", "environment.") for note in notes]

    assert checked()[0] == []
    kinds = {*facts(json.loads(found.receipt.read_text()))}
    assert len(kinds) > 30
    chosen = {("without", "self"), ("start",), ("each",)}  # trained otherwise
    of_file = {("format",), ("version",), ("run", "name")}
    paths = kinds - chosen - of_file
    for member in {path[0] for path in paths}:
        wrong = [path for path in paths if path[0] == member]
        lines, notes = checked(*wrong)
        assert member != "environment" or lines == []
        for path in wrong:
            starts = f"{'.'.join(path)}: "
            assert any(line.startswith(starts) for line in (*lines, *notes)), path
    assert not (again / "replay.json").exists()


def test_a_receipt_of_another_choice_does_not_hold(
    project: Path, unread: Replay, tmp_path: Path
) -> None:
    table = json.loads(unread.receipt.read_text()) | {"start": 24, "each": True}
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps(table))

    lines = check_replay(receipt, project / "run")

    for named in ("branches.without", "checkpoint"):
        assert any(line.startswith(named) for line in lines)


def test_the_command_checks_a_receipt(
    project: Path,
    found: Replay,
    again: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    options = ["--out", again]
    checked = said(capsys, "replay", "--check", found.receipt, *options)
    assert "holds, bit for bit" in checked

    path = ("branches", "without", "state")
    wrong = str(forged(found.receipt, tmp_path / "wrong.json", path))
    run, options = str(project / "run"), [str(each) for each in options]
    assert main(["replay", run, "--check", wrong, *options]) == 3
    printed = capsys.readouterr()
    assert "branches.without.state: " in printed.out
    assert "compare the losses" in printed.err

    # Elsewhere, there is no run beside a receipt.
    assert main(["replay", "--check", wrong]) == 1
    assert "give RUN" in capsys.readouterr().err
    assert main(["replay", run, "--check", wrong, "--each"]) == 1
    assert "omit --each" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"without": {"self": "/dev/zero"}}, "array.*without"),
        ({"without": {"self": ["/etc/passwd"]}}, "without"),
        ({"without": {"self": [True]}}, "without"),
        ({"without": {"self": [-1]}}, "without"),
        ({"without": {"self": [[1, 2, 3]]}}, "without"),
        ({"without": 3}, "object.*without"),
        ({"branches": [1]}, "object.*branches"),
        ({"branches": {"without": {}}}, "missing.*step.*branches"),
        ({"start": "0"}, "int.*start"),
        ({"start": 1e300}, "start"),
        ({"run": "runs/first"}, "object.*run"),
        ({"seconds": 3.0}, "unknown field `seconds`"),
        ({"version": 2}, "version 2"),
        ({"format": "roxxel-run"}, "not a receipt"),
    ],
)
def test_a_receipt_is_data_of_one_form(
    found: Replay, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps({**json.loads(found.receipt.read_text()), **change}))

    with pytest.raises(RunFolderError, match=f"{file}: .*{words}") as caught:
        check_replay(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["/", "s3://bucket/run", "..", ".", "", "~", "a/../../run", "gone"]
)
def test_a_receipt_opens_nothing_but_the_run_beside_it(
    found: Replay, tmp_path: Path, place: str
) -> None:
    table = json.loads(found.receipt.read_text())
    table["run"]["name"] = place
    (tmp_path / "receipt.json").write_text(json.dumps(table))

    with pytest.raises(RunFolderError, match="not beside the receipt; give RUN"):
        check_replay(tmp_path / "receipt.json")


def test_a_receipt_is_a_file_that_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")

    for path in ("/dev/zero", tmp_path / "pipe.json", tmp_path):
        with pytest.raises(RunFolderError, match=f"{path}: is a .*`roxxel replay`"):
            check_replay(path)


def test_a_check_never_writes_where_a_replay_is(found: Replay) -> None:
    before = found.receipt.read_bytes()

    with pytest.raises(RunFolderError, match="another --out"):
        check_replay(found.receipt, out=found.receipt.parent)
    assert found.receipt.read_bytes() == before


def test_a_control_whose_log_alone_is_equal_is_not_the_run(
    project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    forge(tmp_path / "run", 36, flips={"model/layers/0/embedding": 0})

    result = replay(tmp_path / "run", {"code": [UNREAD]}, step=30, out=tmp_path / "out")

    assert result.comparison.step == 36
    assert result.comparison.first_difference is None
    assert not result.comparison.is_equal
    assert "equals the run bit for bit" not in str(result)


def test_the_text_s_own_loss_is_no_part_of_eval_loss(
    project: Path, tmp_path: Path
) -> None:
    text = CONFIG.replace('"run"', '"judged"')
    text = text.replace("[trainer]", "[trainer]\neval_every = 6")
    text += '[eval.withdrawn]\npath = "code.rox"\nsteps = 2\nbatch_size = 4\n'
    (project / "judged.toml").write_text(f"{text}seq_len = 17\n")
    assert main(["train", str(project / "judged.toml")]) == 0

    result = replay(project / "judged", {"code": [UNREAD]}, step=30, out=tmp_path)

    losses = [
        [row["eval_loss"] for row in open_run(folder).metrics if "eval_loss" in row][-1]
        for folder in (project / "judged", result.control.folder)
    ]
    assert losses[0] == losses[1]
    assert result.text_loss == "eval_loss/withdrawn_"
    [branch] = result.branches
    report = str(result)
    assert "held-out loss withdrawn" in report
    assert "loss on the text itself" in report
    assert result.effect(branch) == result.change(branch, "eval_loss/withdrawn")


@settings(max_examples=20)
@given(st.sets(st.text(min_size=1), min_size=2, max_size=20), st.integers(0, 99))
@example({"x y", "x-y", "X-y", "x.y", "x.z", "a" * 300, "a" * 301}, 12)
def test_no_two_branches_have_one_folder(sources: set[str], number: int) -> None:
    names = [f"{source}:{number}" for source in sources]
    names += [f"{source}:tokens:[{number},99)" for source in sources]

    # Some disks take capitals for small letters.
    files = {file_name(name).casefold() for name in [*names, "control", "without"]}

    assert len(files) == 2 * len(sources) + 2
    assert all(re.fullmatch(r"[a-z0-9_.-]{1,90}", file) for file in files)


def test_each_document_has_a_branch_and_a_place_in_the_table(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    numbers = f"code:{UNREAD},{UNREAD - 1}"
    command = ["replay", project / "run", "--without", numbers, "--each"]
    command += ["--step", "30", "--out", tmp_path]
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


def test_a_corpus_that_has_grown_is_read_as_the_run_has_read_it(
    project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    web = Roxxel(tmp_path / "web_*.rox")
    web.write([np.arange(60)], exist="append")
    web.write_column("loss_mask", np.arange(web.num_tokens) % 2, dtype="uint8")

    out = tmp_path / "branches"
    found = replay(tmp_path / "run", {"self": [LONG]}, step=0, out=out)

    assert found.comparison.is_equal, str(found)


def test_a_proxy_is_trained_without_the_document(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "run")
    text = CONFIG.replace("longest = 1000", "longest = 100")
    (tmp_path / "run.toml").write_text(f"{text}\n[proxy]\nscale = 0.5\n")
    assert main(["train", str(tmp_path / "run.toml")]) == 0

    out = tmp_path / "branches"
    found = replay(tmp_path / "run", {"self": [LONG]}, step=0, out=out)

    assert found.comparison.is_equal, str(found)
    assert found.branches[0].distance > 0


def test_other_masks_than_the_run_has_read_are_named(
    project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "run")
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.replace("steps = 36", "steps = 1"))
    web = Roxxel(tmp_path / "web_*.rox")
    mask = np.arange(web.num_tokens, dtype="uint8") % 2
    web.write_column("loss_mask", mask)
    assert main(["train", str(config)]) == 0
    web.write_column("loss_mask", 1 - mask, exist="replace")

    [found] = verify(tmp_path / "run", range(1), trust=True)

    named = "the column 'loss_mask' of source 'self' had the digest "
    assert not found.is_equal
    assert named in str(found)
    with pytest.raises(RunFolderError, match=named):
        replay(tmp_path / "run", {"self": [3]}, step=0, trust=True)


def test_a_file_of_documents_that_has_grown_is_read_as_the_run_has_read_it(
    project: Path, tmp_path: Path
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "run")
    config, listed = tmp_path / "run.toml", tmp_path / "withdrawn.txt"
    text = CONFIG.replace("every = 3", "every = 1")
    text = text.replace("self = []", 'self = "withdrawn.txt"')
    for steps, stop in ((1, 9), (2, 19)):
        listed.write_text("".join(f"{document}\n" for document in range(stop)))
        config.write_text(text.replace("steps = 36", f"steps = {steps}"))
        assert main(["train", str(config)]) == 0
    listed.write_text("29\n")

    for steps in (range(2), range(1, 2)):
        [found] = verify(tmp_path / "run", steps, trust=True)
        assert found.is_equal, str(found)


def restarted(project: Path, folder: Path, before: str, after: str) -> Path:
    """Copy the run, which has then started at step 33 with a changed config."""
    shutil.copytree(project, folder, dirs_exist_ok=True)
    run = folder / "run"
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    again = json.loads(lines[0]) | {"step": 33, "after": zlib.crc32(lines[-1])}
    again["config"] = again["config"].replace(before, after)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    return run


@pytest.mark.parametrize("left_out", [f"[[{LONG}, 25]]", '["tokens:[1290,1310)"]'])
def test_what_the_run_leaves_out_itself_has_no_branch_without_it(
    project: Path, tmp_path: Path, left_out: str
) -> None:
    shutil.copytree(project, tmp_path, dirs_exist_ok=True)
    run, config = tmp_path / "run", tmp_path / "run.toml"
    text = CONFIG.replace("steps = 36", "steps = 37")
    config.write_text(text.replace("self = []", f"self = {left_out}"))
    assert main(["train", str(config)]) == 0

    with pytest.raises(RunFolderError, match=f"already leaves out self:{LONG}, so "):
        replay(run, {"self": [3, LONG]}, step=0, out=tmp_path / "branches")


def test_a_config_that_changed_after_the_start_is_followed_and_said(
    project: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = restarted(project, tmp_path, "log_every = 1", "log_every = 2")
    out = tmp_path / "branches"
    options = ["--without", f"code:{UNREAD}", "--step", "30", "--out", out]

    printed = said(capsys, "replay", run, *options)

    assert "changed after step 30 (trainer.log_every was 1 and is 2)" in printed
    assert "log_every = 2" in (out / "control.toml").read_text()


@pytest.mark.parametrize(
    ("without", "options", "message"),
    [
        ({"self": [0]}, {}, "--step 0.*keep_every"),
        ({"self": [LONG]}, {"step": 36}, "has learned it before step 36"),
        ({"code": [UNREAD]}, {"step": 36}, "step 36 is its last.* earlier step"),
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


def test_the_norm_of_complex_parameters_counts_both_parts() -> None:
    assert norm({"a": np.array([3 + 4j], np.complex64)}) == 5
