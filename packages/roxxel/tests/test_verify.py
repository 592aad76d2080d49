"""Steps of a run trained again: bit-equal, or the first difference is named."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel import Roxxel, verify
from roxxel.cli import main
from roxxel.config import load_config, make_trainer
from roxxel_train import RunFolderError

from .runs import forge_a_weight

if TYPE_CHECKING:
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


@pytest.mark.parametrize("steps", [(0, 10), (3, 6), (4, 5), (7, 10)])
def test_every_interval_is_bit_equal(trained: Path, steps: tuple[int, int]) -> None:
    [found] = verify(trained / "run", range(*steps), trust=True)

    assert found.is_equal, str(found)
    assert found.start <= steps[0]
    assert found.stop == steps[1]
    assert found.num_rows >= (found.stop - found.start) // 2
    assert "bit-equal" in str(found)


def test_a_sample_is_the_same_at_every_call(trained: Path) -> None:
    one, two = (verify(trained / "run", sample=1, trust=True) for _ in range(2))

    assert [(x.start, x.stop) for x in one] == [(x.start, x.stop) for x in two]
    assert one[0].is_equal


def test_a_flipped_bit_is_found_with_its_step_and_leaf(copy: Path) -> None:
    forge_a_weight(copy, 6)

    [found] = verify(copy, range(3, 8), trust=True)

    assert [str(each).split(" of ")[0] for each in found.differences] == [
        "step 6: model/embed/embedding 1"
    ]


def test_a_forged_start_contradicts_the_log(copy: Path) -> None:
    forge_a_weight(copy, 6)

    [found] = verify(copy, range(7, 9), trust=True)

    assert found.differences[0].step == 6
    assert found.differences[0].quantity == "state_digest"


def test_a_forged_loss_or_config_is_found_at_its_step(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(copy, r'("step": 8,.*?"loss": )[0-9.]+', r"\g<1>0.125")

    assert main(["verify", str(copy), "--steps", "6:9", "--trust"]) == 3

    said = capsys.readouterr()
    assert "step 8: loss 0.125 and" in said.out
    rewritten(copy, r"rate = 0\.01", "rate = 0.02")
    [found] = verify(copy, range(3, 8), trust=True)
    assert found.differences[0].step == 6


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
