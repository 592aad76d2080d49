"""A config of the Llama decoder trains the same on one device and on eight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Roxxel

from .conftest import run_python
from .runs import rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.first

CONFIG = """\
model = "roxxel.models:llama"
save_path = "{save_path}"

[sources]
self = "data_*.rox"

[model_args]
total_steps = 3
preset = "tiny"
vocab_size = 64
width = 16
hidden = 32
num_layers = 2
num_heads = 4
num_kv_heads = 2
warmup = 0
{model_args}

[trainer]
log_every = 1
fields = ["tokens", "segment_ids", "positions"]

[[phases]]
steps = 3
batch_size = 8
seq_len = 33

{mesh}
"""

MESH = '[mesh]\naxes = {data = 4, tensor = 2}\nbatch_axes = ["data"]'

# Arguments of the model: both axes, and logits in chunks.
SPLIT = 'tensor_axis = "tensor"\nfsdp_axis = "data"\nloss_chunk = 8'


def train(
    folder: Path, cache: Path, name: str, model_args: str = "", mesh: str = ""
) -> list[float]:
    """Train by the command in a fresh interpreter; return the losses."""
    config = folder / f"{name}.toml"
    config.write_text(CONFIG.format(save_path=name, model_args=model_args, mesh=mesh))
    command = "-m", "roxxel", "train", str(config)
    done = run_python(folder, cache, *command, devices=8 if mesh else 1)
    assert done.returncode == 0, done.stderr
    return [float(row["loss"]) for row in rows(folder / name)]


def test_a_split_model_has_the_losses_of_one_device(
    tmp_path: Path, compilation_cache: Path
) -> None:
    random = np.random.default_rng(0)
    documents = (random.integers(1, 64, size) for size in random.integers(5, 60, 100))
    Roxxel(tmp_path / "data_*.rox").write(documents, separator=0)

    alone = train(tmp_path, compilation_cache, "alone")

    assert len(alone) == 3
    for row in rows(tmp_path / "alone"):
        assert row["loss/self"] == pytest.approx(row["loss"])
    assert alone[2] < alone[0]
    losses = train(tmp_path, compilation_cache, "split", SPLIT, MESH)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
