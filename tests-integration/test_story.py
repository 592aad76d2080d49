"""The story of a new user: from texts in an empty folder to a model in a script.

Every step is a command that a person types, or a script that a person writes.
"""

from __future__ import annotations

import importlib
import json
import pydoc_data.topics
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import forked
import pytest
from roxxel import open_run
from roxxel.quickstart.corpus import docstrings, find_library, read_library

from .conftest import environment
from .runs import rows, stop_at, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

CONFIG = """\
model = "roxxel.models:llama"
save_path = "runs/a"

[sources]
self = "data/code_[0-9]*.rox"
prose = { path = "data/prose_[0-9]*.rox", policy = "repeat" }
topics = { path = "data/topics_[0-9]*.rox", policy = "repeat" }

[[phases]]
steps = 40
batch_size = 8
seq_len = 33
weights = { self = 0.5, prose = 0.25, topics = 0.25 }

[[phases]]
steps = 8
batch_size = 4
seq_len = 65
weights = { self = 0.5, prose = 0.25, topics = 0.25 }

[model_args]
preset = "tiny"
vocab_size = 400
width = 16
hidden = 32
num_layers = 1
context = 64
peak_rate = 0.01
warmup = 2

[trainer]
log_every = 1
eval_every = 25
checkpoint_every = 10
max_to_keep = 9
fields = ["tokens", "segment_ids", "positions"]
grad_accum_steps = 2

[trainer.log_to.tensorboard]

[trainer.log_to.wandb]
project = "story"
mode = "offline"

[eval.code]
path = "data/code_valid_*.rox"
steps = 1
batch_size = 8
seq_len = 33

[eval.prose]
path = "data/prose_valid_*.rox"
steps = 1
batch_size = 8
seq_len = 33

[eval.topics]
path = "data/topics_valid_*.rox"
steps = 1
batch_size = 8
seq_len = 33
"""

SCRIPT = """\
import numpy as np
from roxxel import open_run
from roxxel.models.huggingface import load, write_config

trained = open_run("runs/a").model()
write_config(trained.config, "hf")
model = load("hf", dtype="float32")
tokens = np.arange(48).reshape(2, 24)
np.testing.assert_array_equal(model(tokens), trained(tokens))
print(model(tokens).shape)
"""


class User:
    """Types commands in a folder."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self._environment = {**environment(1, cache), "WANDB_API_KEY": "0" * 40}

    def start(self, *command: str) -> subprocess.Popen[str]:
        return forked.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def roxxel(self, command: str) -> str:
        """Run `roxxel` with these arguments; return what the command printed."""
        return self.python("-m", "roxxel", *command.split())

    def python(self, *arguments: str) -> str:
        with self.start(*arguments) as process:
            shown, told = process.communicate(timeout=600)
        assert process.returncode == 0, f"{arguments}: {shown}{told}"
        return shown + told

    def edit(self, old: str, new: str) -> None:
        config = self.folder / "run.toml"
        text = config.read_text()
        assert text.count(old) == 1
        config.write_text(text.replace(old, new))

    def run(self, name: str) -> Path:
        return self.folder / "runs" / name


def write_texts(folder: Path) -> list[str]:
    """Write three sources of real text; return a part of the texts."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    library = read_library(find_library())
    documents = [d for d in library.train if len(d.content) < 40_000][:150]
    code = [document.content.decode() for document in documents]
    prose = [docstrings(document).decode() for document in documents]
    topics = list(pydoc_data.topics.topics.values())

    def write_lines(name: str, texts: Iterable[str]) -> None:
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (folder / name).write_text("".join(lines))

    write_lines("code.jsonl", code)
    write_lines("topics.jsonl", topics)
    table = arrow.table({"text": [text for text in prose if text]})
    parquet.write_table(table, folder / "prose.parquet")
    return [*code[:20], *topics[:20]]


def prepare(user: User) -> None:
    """Write texts, tokenizer, corpora with held-out documents, and the config."""
    write_tokenizer(user.folder / "tokenizer.json", write_texts(user.folder))
    for name in ("code.jsonl", "prose.parquet", "topics.jsonl"):
        corpus = name.split(".")[0]
        user.roxxel(
            f"write data/{corpus}_*.rox {name} --field text "
            "--tokenizer tokenizer.json --split valid=0.1"
        )
    (user.folder / "run.toml").write_text(CONFIG)


def train_rows(run: Path) -> list[dict[str, Any]]:
    return [row for row in rows(run) if row["kind"] == "train"]


def rates(run: Path) -> list[float]:
    return [row["learning_rate"] for row in train_rows(run)]


@pytest.mark.first
@pytest.mark.long
def test_story_of_a_new_user(tmp_path: Path, compilation_cache: Path) -> None:
    user = User(tmp_path, compilation_cache)
    prepare(user)
    run, branch = user.run("a"), user.run("b")

    # Plan, check, train, kill, change the blend of a later phase, resume.
    assert "48 steps" in user.roxxel("plan run.toml")
    assert "\nready\n" in user.roxxel("train run.toml --preflight")
    started = user.start("-m", "roxxel", "train", "run.toml")
    assert stop_at(21, signal.SIGKILL, started) == -signal.SIGKILL
    later = "seq_len = 65\nweights = { self = 0.5, prose = 0.25, topics = 0.25 }"
    user.edit(later, later.replace("prose = 0.25, topics = 0.25", "topics = 0.5"))
    difference = user.roxxel("plan run.toml --diff runs/a")
    weights = "self 0.5, topics 0.5 instead of self 0.5, prose 0.25, topics 0.25"
    assert f"the weights of phase 1 are {weights}" in difference, difference
    told = user.roxxel("train run.toml")
    assert "resumed from step " in told
    assert "done: 48 of 48 steps" in told
    assert rates(run)[-1] == pytest.approx(0.001, rel=0.05)

    # Extend: the learning rate follows.
    user.edit("steps = 8", "steps = 12")
    assert "done: 52 of 52 steps" in user.roxxel("train run.toml")
    assert [row["step"] for row in train_rows(run)] == [*range(1, 53)]
    assert rates(run)[48] > 1.1 * rates(run)[-1]
    assert rates(run)[-1] == pytest.approx(0.001, rel=0.05)

    # Branch with another blend, and compare.
    blend = "phases.1.weights={self=0.2,prose=0.4,topics=0.4}"
    told = user.roxxel(
        f"train run.toml --branch runs/a@40 --set save_path=runs/b --set {blend}"
    )
    assert "begins as a branch of step 40 of " in told
    assert [row["step"] for row in train_rows(branch)] == [*range(41, 53)]
    parent = open_run(branch).parent
    assert parent is not None
    user.roxxel("report runs/a runs/b")

    # The log has every source, and the sinks have their files.
    for row in train_rows(run)[:40]:
        assert {f"loss/{name}" for name in ("self", "prose", "topics")} <= row.keys()
    held_out = [row for row in rows(run) if row["kind"] == "eval"]
    assert [row["step"] for row in held_out] == [25, 48, 50, 52]
    for row in held_out:
        assert {f"eval_loss/{name}" for name in ("code", "prose", "topics")} <= set(row)
    for pattern in ("wandb/offline-run-*/*.wandb", "tensorboard/*tfevents*"):
        assert [file for file in run.glob(pattern) if file.stat().st_size] != []
    assert "the corpora hold what the run was fed" in user.roxxel(
        "verify --data runs/a"
    )

    # Export, and load in a script.
    (tmp_path / "hf").mkdir()
    user.roxxel("ckpt export runs/a hf/model.safetensors")
    (tmp_path / "script.py").write_text(SCRIPT)
    assert user.python("script.py") == "(2, 24, 400)\n"
