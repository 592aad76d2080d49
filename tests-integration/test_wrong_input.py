"""Wrong input causes an error of one sentence and exit code 1, and damages nothing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import forked
import pytest

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

DATA = """
import numpy as np
from roxxel import Curriculum, Phase, Roxxel
corpus = Roxxel("data_*.rox")
corpus.write((np.arange(50) for _ in range(4)), vocab_size=50)
"""

TRAINING = """
import optax
from flax import nnx
from roxxel import Trainer
model = nnx.Embed(50, 4, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
loss_fn = lambda model, batch: model(batch).mean()
def train(phase, seed=0):
    curriculum = Curriculum(corpus, [phase])
    Trainer(model, optimizer, curriculum, loss_fn, "run", seed=seed).run()
"""

CASES = {
    "missing folder": (
        'Curriculum(Roxxel("nowhere"), [Phase(1, 2, 8)])',
        "nowhere: no such file or folder; write the corpus first, or check the path",
    ),
    "empty corpus": (
        'Roxxel("empty_*.rox").write(iter([]), vocab_size=9)',
        "there are no documents to write",
    ),
    "too many epochs": (
        "Curriculum(corpus, [Phase(50, 2, 8)], max_epochs=1)",
        (
            "phase 0 needs 50 steps, which read source 'self' for 5 epochs with "
            "max_epochs=1; at most 12 steps fit"
        ),
    ),
    "too long": (
        "Curriculum(corpus, [Phase(1, 2, 201)])",
        (
            "phase 0 has seq_len=201, but the whole source 'self' has 200 tokens; use "
            "at most 200, or give it more documents"
        ),
    ),
}


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return forked.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_ends_with_one_clear_sentence(case: str, tmp_path: Path) -> None:
    program, sentence = CASES[case]

    done = run(DATA + program, tmp_path)

    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]


def test_folder_of_another_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    first = run(DATA + TRAINING + "train(Phase(2, 2, 8))", tmp_path)
    assert first.returncode == 0, first.stderr
    before = everything(tmp_path / "run")

    second = run(DATA + TRAINING + "train(Phase(2, 2, 8), seed=1)", tmp_path)

    assert second.returncode == 1
    assert "seed" in second.stderr.splitlines()[-1]
    assert everything(tmp_path / "run") == before
