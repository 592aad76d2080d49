"""A replay on 8 devices with accumulation equals a run that never learned the text."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Roxxel, open_run

from .conftest import environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

CONFIG = """\
model = "roxxel.models:llama"
save_path = "{name}"

[sources]
self = "web_*.rox"

[[phases]]
steps = 14
batch_size = 16
seq_len = 33

[model_args]
total_steps = 14
preset = "tiny"
vocab_size = 64
width = 16
num_heads = 2
num_layers = 1
hidden = 24
context = 64

[trainer]
log_every = 1
checkpoint_every = 4
max_to_keep = 9
grad_accum_steps = 2
fields = ["tokens", "segment_ids", "positions", "loss_mask"]

[without]
self = {without}
"""


def test_a_replay_on_8_devices_with_accumulation_is_exact(
    tmp_path: Path, compilation_cache: Path
) -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(0, 64, 24) for _ in range(300)]
    Roxxel(tmp_path / "web_*.rox").write(documents, vocab_size=64)

    def roxxel(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "roxxel", *arguments],
            env=environment(8, compilation_cache),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "run.toml").write_text(CONFIG.format(name="run", without="[]"))
    roxxel("train", "run.toml")
    run = open_run(tmp_path / "run")
    corpus, sampler = run.corpora()["self"], run.sampler()
    late = [
        number
        for number in range(300)
        for start, stop, _ in [corpus.document_range(number)]  # pyright: ignore[reportAttributeAccessIssue] - a Roxxel
        if 8 <= next((x.step for x in sampler.where("self", start, stop)), 0) < 12
    ][:5]
    text = CONFIG.format(name="scratch", without=late)
    (tmp_path / "scratch.toml").write_text(text)
    roxxel("train", "scratch.toml")

    numbers = ",".join(map(str, late))
    found = json.loads(
        roxxel("replay", "run", "--without", f"self:{numbers}", "--json").splitlines()[
            -1
        ]
    )

    assert (found["start"]["step"], found["comparison"]["is_equal"]) == (8, True)
    [branch] = found["branches"]
    assert branch["distance"] > 0
    pair = "scratch/checkpoints", f"{branch['folder']}/checkpoints"
    again = subprocess.run(
        [sys.executable, "-m", "roxxel", "ckpt", "diff", "--values", *pair],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = again.stdout.splitlines()
    assert "leaves equal" in lines[-1]
    assert [x for x in lines if x[2:].startswith(("model/", "optimizer/"))] == []
