"""Documents withdrawn in the middle of a run, in 1 and 2 real processes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from roxxel import Roxxel, open_run

from .conftest import SEVERAL_PROCESSES, environment
from .runs import rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

CONFIG = """\
model = "roxxel.models:llama"
save_path = "{run}"

[sources]
self = "web_*.rox"

[[phases]]
steps = {steps}
batch_size = 4
seq_len = 33

[model_args]
total_steps = 6
preset = "tiny"
vocab_size = 64
width = 16
num_heads = 2
num_layers = 1
hidden = 24

[trainer]
log_every = 1
fields = ["tokens", "segment_ids", "loss_mask"]
{without}
"""


def train(count: int, config: Path, cache: Path) -> None:
    """Train a config in so many processes, of two devices together."""
    spread = ["--processes", str(count), "--devices-per-process", str(2 // count)]
    python = forked.commands() / "python"
    done = subprocess.run(
        [python, "-W", "error", "-m", "roxxel", "train", config, *spread],
        env=environment(2 // count, cache),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("withdrawn")
    random = np.random.default_rng(0)
    Roxxel(folder / "web_*.rox").write(
        (random.integers(0, 64, 24) for _ in range(300)), vocab_size=64
    )
    return folder


def test_processes_of_any_number_withdraw_the_same_documents(
    folder: Path, compilation_cache: Path
) -> None:
    """The second half of the run is edited, and resumes the first."""
    results: dict[str, list[dict[str, Any]]] = {}
    for count, name in ((1, "one"), (2, "two")):
        for steps, without in ((3, ""), (6, "[without]\nself = [[100, 250]]")):
            config = folder / f"{name}.toml"
            config.write_text(CONFIG.format(run=name, steps=steps, without=without))
            train(count, config, compilation_cache)
        results[name] = rows(folder / name)
        sampler = open_run(folder / name).sampler(["loss_mask"])
        assert sampler.masked_steps("self", 120) == (range(3, 6),)

    for one, two in zip(results["one"], results["two"], strict=True):
        assert one["digest"] == two["digest"]
        assert one["loss_weight"] == two["loss_weight"]
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-4)
    targets = [row["loss_weight"] for row in results["one"] if row["kind"] == "train"]
    assert sum(targets[3:]) < sum(targets[:3])
