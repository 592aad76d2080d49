"""The commands on one config file: planned, trained, killed, resumed, reported."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import forked
import numpy as np
import pytest
from roxxel import Roxxel

from .conftest import environment
from .runs import rows, stop_at

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.first

MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx


def make(vocab_size):
    model = nnx.Sequential(
        nnx.Embed(vocab_size, 16, rngs=nnx.Rngs(0)),
        nnx.Linear(16, vocab_size, rngs=nnx.Rngs(1)),
    )
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), loss_fn


def loss_fn(model, batch):
    logits = model(batch["tokens"][:, :-1])
    starts = batch["positions"][:, 1:] == 0
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, batch["tokens"][:, 1:]
    )
    return {"loss": losses.mean(), "starts": jnp.mean(starts)}
"""

CONFIG = """\
model = "tiny.model:make"
save_path = "../runs/first"

[sources]
self = "../data/web_*.rox"
code = { path = "../data/code.rox", policy = "repeat" }

[[phases]]
steps = 30
batch_size = 8
seq_len = 17
weights = { self = 0.75, code = 0.25 }

[[phases]]
steps = 10
batch_size = 2
seq_len = 65

[model_args]
vocab_size = 64

[trainer]
log_every = 1
checkpoint_every = 7
eval_every = 20
fields = ["tokens", "positions"]
best_metric = "eval_loss"
grad_accum_steps = 2

[eval]
sources = { self = "../data/held_out.rox" }
phases = [{ steps = 2, batch_size = 8, seq_len = 17 }]

[mesh]
preset = "fsdp"
"""


def write_project(folder: Path) -> None:
    (folder / "configs" / "tiny").mkdir(parents=True)
    (folder / "data").mkdir()
    for name, count in (("web_*.rox", 40), ("code.rox", 20), ("held_out.rox", 10)):
        documents = (np.arange(start, start + 50) % 64 for start in range(count))
        Roxxel(folder / "data" / name).write(documents, vocab_size=64)
    (folder / "configs" / "tiny" / "__init__.py").write_text("")
    (folder / "configs" / "tiny" / "model.py").write_text(MODEL)
    (folder / "configs" / "first.toml").write_text(CONFIG)


def start(folder: Path, cache: Path, *arguments: str) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, "-W", "error", "-m", "roxxel", *arguments],
        cwd=folder,
        env=environment(2, cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(folder: Path, cache: Path, *arguments: str) -> str:
    with start(folder, cache, *arguments) as process:
        shown, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return shown


def test_a_config_killed_and_stopped_ends_as_one_left_alone(
    tmp_path: Path, compilation_cache: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        write_project(folder)
    plan = finish(whole, compilation_cache, "plan", "configs/first.toml")

    shown = finish(whole, compilation_cache, "train", "configs/first.toml")

    headline = plan.splitlines()[0]
    brief = shown.splitlines()[:4]
    assert brief[0] == headline
    assert brief[1].startswith("tokens: ")
    assert brief[2].startswith("the whole plan: ")
    assert brief[2].endswith("roxxel plan configs/first.toml")
    assert brief[3] == ""
    assert "done: 40 of 40 steps" in shown
    train = ("train", "configs/first.toml")
    first = start(broken, compilation_cache, *train)
    assert stop_at(9, signal.SIGKILL, first) == -signal.SIGKILL
    second = start(broken, compilation_cache, *train)
    assert stop_at(16, signal.SIGTERM, second) == 75
    finish(broken, compilation_cache, "train", "configs/first.toml")
    assert rows(broken / "runs/first") == rows(whole / "runs/first")
    run = broken / "runs" / "first"
    assert (run / "config.toml").read_text().startswith('relative_to = "../../configs"')

    again = finish(broken, compilation_cache, "train", "runs/first/config.toml")
    assert "already complete: 40 steps" in again
    shown = finish(broken, compilation_cache, "report", "runs/first")
    assert "runs/first: complete, 40 of 40 steps" in shown
    page = (run / "report.html").read_text()
    assert "eval_loss (held out)" in page
    assert "best eval_loss" in page
    assert "phase 1: 2 x 65" in page
