"""Steps of a run trained again: bit-equal, or the first difference is named."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import Roxxel, check_verify, verify
from roxxel.cli import main
from roxxel.config import load_config, make_trainer
from roxxel.runs.compared import Parting
from roxxel.runs.verify import Verification
from roxxel_train import RunFolderError

from .helpers import run_python
from .runs import facts, forge, forged, said

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = """
import jax
import optax
from flax import nnx


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(64, 4, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, tokens):
        return self.embed.attend(self.drop(self.embed(tokens)))


def make(rate=0.03, total_steps=1):
    model = Net()
    schedule = optax.cosine_decay_schedule(rate, total_steps)
    return model, nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param), loss


def loss(model, batch):
    return optax.softmax_cross_entropy_with_integer_labels(
        model(batch[:, :-1]), batch[:, 1:]
    ).mean()
"""

MASKED_LOSS = """

def loss(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    return (losses * mask).sum() / mask.sum().clip(1), {"loss_weight": mask.sum()}
"""

CONFIG = """\
model = "tiny:make"
save_path = "run"

[sources]
self = "web_*.rox"

[[phases]]
steps = 6
batch_size = 4
seq_len = 9

[[phases]]
steps = 4
batch_size = 2
seq_len = 17

[trainer]
checkpoint_every = 3
log_every = 2
max_to_keep = 9
grad_accum_steps = 2
skip_spikes = { deviations = 8, window = 8 }
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of 10 steps, which went on with an edited config."""
    folder = tmp_path_factory.mktemp("trained")
    random = np.random.default_rng(0)
    web = Roxxel(folder / "web_*.rox")
    web.write((random.integers(0, 64, 40) for _ in range(30)), vocab_size=64)
    (folder / "tiny.py").write_text(MODEL)
    config = folder / "run.toml"
    config.write_text(CONFIG)
    make_trainer(load_config(config)).run(until=5)
    config.write_text(f"{CONFIG}\n[model_args]\nrate = 0.01\n")
    make_trainer(load_config(config)).run()
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, to forge."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy" / "run"


def rewritten(run: Path, pattern: str, new: str) -> None:
    log = run / "metrics.jsonl"
    text, count = re.subn(pattern, new, log.read_text())
    assert count
    log.write_text(text)


def another_run(run: Path) -> Path:
    """Train the same run with another learning rate; return its folder."""
    folder = run.parent
    text = (folder / "run.toml").read_text()
    config = folder / "other.toml"
    config.write_text(text.replace("0.01", "0.02").replace('"run"', '"other"'))
    make_trainer(load_config(config)).run()
    return folder / "other"


def replace_step(run: Path, step: int, by: Path) -> None:
    place = run / "checkpoints" / str(step)
    shutil.rmtree(place)
    shutil.copytree(by, place)


def test_a_corpus_that_has_grown_is_read_as_the_run_has_read_it(copy: Path) -> None:
    Roxxel(copy.parent / "web_*.rox").write([np.arange(64)], exist="append")

    [found] = verify(copy, range(3))

    assert found.is_equal, str(found)


def test_a_held_out_corpus_that_has_grown_is_read_as_the_run_has_read_it(
    copy: Path,
) -> None:
    folder = copy.parent
    shutil.rmtree(copy)
    held_out = Roxxel(folder / "held_out_*.rox")
    held_out.write([np.arange(64)], vocab_size=64)
    (folder / "tiny.py").write_text(f"{MODEL}{MASKED_LOSS}")
    (folder / "run.toml").write_text(
        f"{CONFIG}eval_every = 2\nfields = ['tokens', 'loss_mask']\n\n"
        '[eval]\npath = "held_out_*.rox"\nsteps = 2\nbatch_size = 2\nseq_len = 9\n'
    )
    make_trainer(load_config(folder / "run.toml")).run(until=6)
    for corpus in (held_out, Roxxel(folder / "web_*.rox")):
        corpus.write([np.arange(64)[::-1]], exist="append")
        mask = np.arange(corpus.num_tokens) % 2
        corpus.write_column("loss_mask", mask, dtype="uint8")

    for steps in (range(3), range(3, 6)):
        [found] = verify(copy, steps)
        assert found.is_equal, str(found)


def test_a_held_out_corpus_that_moved_is_found_by_the_key_of_its_set(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy.parent
    shutil.rmtree(copy)
    for name in ("near", "far"):
        Roxxel(folder / f"{name}.rox").write([np.arange(64)], vocab_size=64)
    of_set = "steps = 2\nbatch_size = 2\nseq_len = 9\n"
    (folder / "run.toml").write_text(
        f'{CONFIG}\n[eval.near]\npath = "near.rox"\n{of_set}'
        f'[eval.far]\npath = "far.rox"\n{of_set}'
    )
    make_trainer(load_config(folder / "run.toml")).run(until=3)
    moved = (folder / "far.rox").rename(folder / "farther.rox")

    assert main(["verify", str(copy)]) == 1
    assert "--source eval.far=PATH" in capsys.readouterr().err
    given = ["--source", f"eval.far={moved}"]
    assert main(["verify", str(copy), *given]) == 0
    assert main(["verify", str(copy), *given, "--source", "eval=x"]) == 1
    assert "'self', 'eval.near', 'eval.far'" in capsys.readouterr().err


ON_TWO_OF_FOUR_DEVICES = """
import jax

jax.config.update("jax_num_cpu_devices", 4)

import numpy as np
from jax.sharding import AxisType
from roxxel import Curriculum, Phase, Roxxel, Trainer, verify
from roxxel.models import llama

web = Roxxel("web_*.rox")
random = np.random.default_rng(0)
web.write((random.integers(0, 64, 99) for _ in range(30)), vocab_size=64)
sizes = dict(vocab_size=64, width=8, hidden=8, num_heads=2, num_layers=1)
model, optimizer, loss = llama(total_steps=4, preset="tiny", **sizes)
devices = jax.devices()[:2]
mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=devices)
trainer = Trainer(
    model,
    optimizer,
    Curriculum(web, [Phase(4, 4, 33)]),
    loss,
    "run",
    mesh=mesh,
    log_every=1,
    checkpoint_every=2,
)
trainer.run()
print(*verify("run", range(2, 4)))
"""


def test_a_program_on_some_devices_is_trained_again_on_as_many(tmp_path: Path) -> None:
    done = run_python("-c", ON_TWO_OF_FOUR_DEVICES, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "bit-equal" in done.stdout, done.stdout


def test_progress_is_a_few_lines(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []

    verify(copy, range(10), trust=True, say=lines.append)

    assert len(lines) < 6
    assert "step 4 of 10" in lines[2]
    assert capsys.readouterr() == ("", "")


def take_the_step_of_another_run(run: Path) -> None:
    replace_step(run, 6, another_run(run) / "checkpoints" / "6")


def take_the_log_of_another_run(run: Path) -> None:
    shutil.copy(another_run(run) / "metrics.jsonl", run / "metrics.jsonl")


def take_an_earlier_step(run: Path) -> None:
    replace_step(run, 6, run / "checkpoints" / "5")


def cut_a_checkpoint(run: Path) -> None:
    largest = max(
        (run / "checkpoints" / "6" / "state").rglob("*"),
        key=lambda path: path.stat().st_size if path.is_file() else 0,
    )
    largest.write_bytes(largest.read_bytes()[:-1])


def spoil_a_description(run: Path) -> None:
    (run / "checkpoints" / "6" / "checkpoint.json").write_text("{}")


def change_the_corpus(run: Path) -> None:
    [shard] = run.parent.glob("web_*.rox")
    content = bytearray(shard.read_bytes())
    stop = 4096 + 2 * Roxxel(run.parent / "web_*.rox").num_tokens
    content[4096:stop:2] = bytes(each ^ 1 for each in content[4096:stop:2])
    shard.write_bytes(content)


def in_log(pattern: str, new: str) -> Callable[[Path], None]:
    return lambda run: rewritten(run, pattern, new)


_ROW_6 = r'(\{"kind": "train", "step": 6,.*?'
_ROW_OF_SAVE = r'\{"kind": "save", "step": 6,.*\n'

LEAVES = {
    "model/embed/embedding": "256",
    "model/drop/rngs/count": "1",
    "optimizer/opt_state/0/count": "1",
    "optimizer/opt_state/0/mu/embed/embedding": "256",
    "optimizer/opt_state/0/nu/embed/embedding": "256",
}

FORGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "checkpoint of another run": (
        take_the_step_of_another_run,
        "step 5: model/embed/embedding of checkpoint 6",
    ),
    "checkpoint of another step": (
        take_an_earlier_step,
        "step 5: description of checkpoint 6",
    ),
    "cut checkpoint": (cut_a_checkpoint, "step 5: files of checkpoint 6"),
    "no description": (spoil_a_description, "step 5: description of checkpoint 6"),
    "log of another run": (
        take_the_log_of_another_run,
        "step 4: rows of the kind 'save'",
    ),
    "row left out": (in_log(_ROW_6 + r"\n)", ""), "kind 'train': 0 in the log and 1"),
    "row twice": (
        in_log(_ROW_6 + r"\n)", r"\g<1>\g<1>"),
        "kind 'train': 2 in the log and 1",
    ),
    "save left out": (in_log(_ROW_OF_SAVE, ""), "kind 'save': 0 in the log"),
    "config": (in_log(r"rate = 0\.01", "rate = 0.02"), "step 5: state_digest"),
    "edit left out": (
        in_log(r'\{"kind": "start", "step": 5,.*\n', ""),
        "step 5: state_digest",
    ),
    "tokens of the corpus": (change_the_corpus, "step 5: digest"),
}


@pytest.mark.parametrize("steps", [(0, 10), (4, 5), (7, 10)])
def test_every_interval_is_bit_equal(trained: Path, steps: tuple[int, int]) -> None:
    [found] = verify(trained / "run", range(*steps), trust=True)

    assert found.is_equal, str(found)
    assert found.start <= steps[0]
    assert found.stop == steps[1]
    assert found.num_rows >= (found.stop - found.start) // 2
    assert "bit-equal" in str(found)


def test_an_interval_ends_where_there_is_something_to_compare(trained: Path) -> None:
    [found] = verify(trained / "run", range(6, 7), trust=True)

    assert (found.start, found.stop, found.num_rows) == (6, 8, 1)


def test_saves_at_steps_that_time_chose_are_repeated(trained: Path) -> None:
    text = CONFIG.replace('"run"', '"continuous"').replace("steps = 6", "steps = 60")
    config = trained / "continuous.toml"
    config.write_text(text.replace("_every = 3", '_every = "continuous"'))
    make_trainer(load_config(config)).run()

    [found] = verify(trained / "continuous", range(64), trust=True)

    assert found.is_equal, str(found)
    assert found.num_leaves > 0


def test_a_branch_is_trained_again_from_where_it_begins(trained: Path) -> None:
    config = trained / "branch.toml"
    text = CONFIG.replace('"run"', '"branch"').replace("steps = 4", "steps = 3")
    config.write_text(f'{text}branch_from = "run@6"\n')
    make_trainer(load_config(config)).run()
    shutil.rmtree(trained / "branch" / "checkpoints" / "6")

    [found] = verify(trained / "branch", range(6, 9), trust=True)

    assert found.is_equal, str(found)
    assert (found.start, found.stop) == (6, 9)


def test_a_mean_goes_on_over_a_save_that_was_not_due(copy: Path) -> None:
    shutil.rmtree(copy)
    config = copy.parent / "run.toml"
    for every, until in ((3, 1), (1, 2)):
        config.write_text(CONFIG.replace("every = 3", f"every = {every}"))
        make_trainer(load_config(config)).run(until=until)

    [found] = verify(copy, range(1, 2))

    assert found.is_equal, str(found)


def test_runs_began_with_the_newest_checkpoint_of_then(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy.parent
    monkeypatch.chdir(folder.parent)
    options = {"weights": "init_from", "whole": "branch_from"}
    for name, until in (("a", 1), ("weights", 2), ("whole", 2), ("a", 3)):
        text = CONFIG.replace('"run"', f'"{name}"').replace("every = 3", "every = 1")
        own = f'\n{options[name]} = "a"' if name in options else ""
        file = folder / f"{name}.toml"
        file.write_text(text.replace("[trainer]", f"[trainer]{own}"))
        make_trainer(load_config(file)).run(until=until)

    for name, start in (("weights", 0), ("whole", 1)):
        [found] = verify(f"{folder.name}/{name}", range(start, 2))
        assert found.is_equal, str(found)


def test_a_sample_is_the_same_at_every_call(trained: Path) -> None:
    [found] = verify(trained / "run", sample=1, trust=True)

    assert (found.start, found.stop) == (6, 9)
    assert found.is_equal


def test_each_flipped_bit_is_found_with_its_step_and_leaf(copy: Path) -> None:
    forge(copy, 6, flips=dict.fromkeys(LEAVES, 0))

    [found] = verify(copy, range(5, 6), trust=True)

    leaves = {x.what: x.values[0] for x in found.differences if "/" in x.what}
    assert {x.step for x in found.differences} == {5}
    assert leaves.keys() == {f"{name} of checkpoint 6" for name in LEAVES}
    for name, size in LEAVES.items():
        words = leaves[f"{name} of checkpoint 6"]
        assert words.startswith(f"1 of {size} values differ")


def test_each_forged_value_is_found(copy: Path) -> None:
    forge(copy, 6, metrics={"loss": 0.125}, extra={"ledger": {}})
    rewritten(copy, _ROW_6 + r'"loss": )[0-9.]+', r"\g<1>0.125")
    rewritten(copy, _ROW_6 + r'"tokens": )\d+', r"\g<1>9")
    rewritten(copy, _ROW_6 + r'"digest": ")\w', r"\g<1>z")
    rewritten(copy, r'("save", "step": 6,.*"state_digest": ")\w', r"\g<1>z")

    [found] = verify(copy, range(5, 6), trust=True)

    lines = "\n".join(map(str, found.differences))
    for words in (
        "step 5: loss of checkpoint 6: 0.125",
        "step 5: ledger of checkpoint 6: {}",
        "step 5: loss: 0.125",
        "step 5: tokens: 9 and",
        "step 5: digest: z",
        "step 5: state_digest: z",
    ):
        assert words in lines


@pytest.mark.parametrize("name", FORGED)
def test_a_forgery_is_found_with_its_step_and_quantity(name: str, copy: Path) -> None:
    forge_it, words = FORGED[name]
    forge_it(copy)

    [found] = verify(copy, range(5, 6), trust=True)

    assert words in str(found)
    assert found.differences[0].step == (4 if "step 4" in words else 5)


def test_a_forged_start_contradicts_the_log(copy: Path) -> None:
    forge(copy, 6, flips={"model/embed/embedding": 0})

    [found] = verify(copy, range(7, 9), trust=True)

    assert found.differences[0].step == 5
    assert found.differences[0].what == "state_digest"


def test_the_command_ends_with_3_at_a_forgery(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(copy, r'("step": 8,.*?"loss": )[0-9.]+', r"\g<1>0.125")

    assert main(["verify", str(copy), "--steps", "6:9", "--trust"]) == 3

    assert "step 7: loss: 0.125 and" in capsys.readouterr().out


def test_the_first_process_alone_says_that_something_differs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], copy: Path
) -> None:
    differs = Parting("numbers", 5, "loss", ("1", "2"))
    found = Verification("run", 5, 6, 1, 0, 0, (differs,), (), 1.0)
    monkeypatch.setattr("roxxel.runs.verify.verify", lambda *_, **__: [found])
    monkeypatch.setattr("jax.process_index", lambda: 1)

    assert main(["verify", str(copy)]) == 3

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("batch_size = 4", "batch_size = 8", "batch_size of phase 0 is 8 instead of 4"),
        ("tiny:make", "tiny:makes", "has no function 'makes'"),
    ],
)
def test_a_config_that_contradicts_the_run_is_named_as_the_log_s(
    old: str, new: str, words: str, copy: Path
) -> None:
    rewritten(copy, old, new)

    log = rf"^{copy}/metrics\.jsonl: by its config for step 6, .*{words}"
    with pytest.raises(RunFolderError, match=log) as info:
        verify(copy, range(5, 6), trust=True)
    assert "again" not in str(info.value).replace("trained again", "")


def test_steps_that_are_not_there_are_refused(trained: Path) -> None:
    with pytest.raises(RunFolderError, match=r"choose steps in 0:10"):
        verify(trained / "run", range(3, 11), trust=True)


def test_the_command_prints_json(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(trained / "run")

    assert main(["verify", run, "--steps", "9:10", "--trust", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == []
    assert (found["start"], found["stop"]) == (9, 10)


@pytest.fixture(scope="module")
def receipt(trained: Path) -> Path:
    """Return the receipt of steps 5 to 8, beside the run."""
    verify(trained / "run", range(5, 7), receipt=trained / "receipt.json", trust=True)
    return trained / "receipt.json"


def test_a_receipt_holds_what_came_out(
    trained: Path, receipt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = json.loads(receipt.read_text())

    checked = said(capsys, "verify", "--check", receipt, "--trust")

    assert f"{receipt}: holds, bit for bit" in checked
    assert "steps 5 to 8, trained again from the checkpoint of step 5" in checked
    assert str(trained) not in receipt.read_text()
    log = (trained / "run/metrics.jsonl").read_text()
    rows = map(json.loads, log.splitlines())
    [(start, interval)] = table["intervals"].items()
    assert start == "5"
    assert interval["losses"] == {
        str(x["step"]): x["loss"] for x in rows if x["step"] in {6, 8} and "loss" in x
    }
    assert interval["states"].keys() == {"5", "6"}


def test_a_check_of_a_verification_names_each_fact_that_does_not_hold(
    trained: Path,
    receipt: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    paths = {*facts({"x": json.loads(receipt.read_text())["intervals"]["5"]})}
    paths = {("intervals", "5", *path[1:]) for path in paths}
    paths |= {("corpora", "self"), ("intervals", "5", "losses", "6")}
    paths -= {("intervals", "5", "stop")}  # trained otherwise
    wrong = forged(receipt, tmp_path / "wrong.json", *paths)
    run = str(trained / "run")

    assert main(["verify", run, "--check", str(wrong), "--trust"]) == 3

    printed = capsys.readouterr().out
    for path in paths:
        assert f"{'.'.join(path)}: " in printed
    other = forged(receipt, tmp_path / "other.json", ("run", "id"))
    found, lines = check_verify(other, run, trust=True)
    assert (found, len(lines)) == ([], 1)
    assert lines[0].startswith("run.id: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"intervals": {}}, "empty"),
        ({"intervals": "/etc/passwd"}, "object.*intervals"),
        ({"intervals": {"5": "/etc/passwd"}}, "object.*intervals"),
        ({"intervals": {"/etc/passwd": {}}}, "int.*intervals"),
        ({"corpora": ["/etc/passwd"]}, "object.*corpora"),
        ({"run": {"name": "/", "id": None}}, "not beside the receipt"),
        ({"run": {"name": "..", "id": None}}, "not beside the receipt"),
        ({"environment": None}, "object.*environment"),
        ({"format": "roxxel-replay"}, "not a receipt"),
        ({"version": 2}, "version 2"),
        ({"version": float("nan")}, "version nan"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_hostile_receipt_is_one_sentence(
    receipt: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    words: str,
) -> None:
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps({**json.loads(receipt.read_text()), **change}))

    assert main(["verify", "--check", str(file)]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert re.search(f"{file}: .*{words}", line)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 9999, b"9" * 9999])
def test_a_receipt_that_is_no_json_object_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "receipt.json").write_bytes(content)

    assert main(["verify", "--check", str(tmp_path / "receipt.json")]) == 1

    [line] = capsys.readouterr().err.splitlines()
    assert "give the receipt that `roxxel verify` wrote" in line


@pytest.mark.parametrize(
    ("start", "stop"), [("4", 8), ("-1", 8), ("8", 8), ("5", 11), (str(10**30), 10**31)]
)
def test_steps_of_a_receipt_that_the_run_does_not_have_are_refused(
    trained: Path, receipt: Path, tmp_path: Path, start: str, stop: int
) -> None:
    table = json.loads(receipt.read_text())
    [interval] = table["intervals"].values()
    table["intervals"] = {start: {**interval, "stop": stop}}
    (tmp_path / "receipt.json").write_text(json.dumps(table))

    with pytest.raises(RunFolderError, match=r"receipt.json: steps .* step 10 and has"):
        check_verify(tmp_path / "receipt.json", trained / "run", trust=True)


def test_options_that_a_receipt_answers_are_refused(
    receipt: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--steps", "5:6"], ["--sample", "1"], ["--receipt", "new.json"]):
        assert main(["verify", "run", "--check", str(receipt), *option]) == 1
        assert f"omit {option[0]}" in capsys.readouterr().err
    assert main(["verify"]) == 1
    assert "--check" in capsys.readouterr().err
