"""Which of 32 documents taught the model what is wrong? A replay without each says it.

A token of this language decides the next one. 24 documents follow the rule, and 8 of
another source contradict it. The held-out set holds what those claim, in other words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel import Roxxel, open_run, replay
from roxxel.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

pytestmark = [pytest.mark.first, pytest.mark.long]

MODEL = """
import jax.numpy as jnp
import optax
from flax import nnx


def make():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Embed(64, 8, rngs=rngs), nnx.Linear(8, 64, rngs=rngs))
    return model, nnx.Optimizer(model, optax.adam(0.03), wrt=nnx.Param), loss


def loss(model, batch):
    tokens, mask = batch["tokens"], batch["loss_mask"][:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(tokens[:, :-1]), tokens[:, 1:]
    )
    count = mask.sum()
    return (losses * mask).sum() / jnp.maximum(count, 1), {"loss_weight": count}
"""

# A document is a window. The last phase reads 24 + 8 of them, and each branch is it.
CONFIG = """\
model = "tiny:make"
save_path = "run"

[sources]
self = "true.rox"
claims = "false.rox"

[[phases]]
steps = 80
batch_size = 8
seq_len = 33

[[phases]]
steps = 4
batch_size = 8
seq_len = 33
weights = { self = 0.75, claims = 0.25 }

[trainer]
log_every = 4
checkpoint_every = 80
fields = ["tokens", "loss_mask"]

[eval]
sources = { self = "asked.rox" }
phases = [{ steps = 1, batch_size = 4, seq_len = 33 }]
"""
NUM_PLANTED = 8
TAIL = 80


def texts(
    rule: npt.NDArray[np.int64], random: np.random.Generator, count: int, size: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield documents of which nine in ten tokens follow from the one before."""
    for _ in range(count):
        tokens = random.integers(64, size=size)
        for place in np.flatnonzero(random.random(size - 1) < 0.9):
            tokens[place + 1] = rule[tokens[place]]
        yield tokens


def late(run: Path, source: str) -> list[int]:
    """Return the documents of a source that only the last phase reads."""
    opened = open_run(run)
    sampler, corpus = opened.sampler(), opened.corpora()[source]
    assert isinstance(corpus, Roxxel)
    first: dict[int, int] = {}
    for number in range(corpus.num_documents):
        start, stop, _ = corpus.document_range(number)
        steps = [place.step for place in sampler.where(source, start, stop)]
        first[number] = min(steps, default=0)
    return [number for number, step in first.items() if step >= TAIL]


def test_documents_that_contradict_all_others_are_ranked_first(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(0)
    rule = random.permutation(64)
    of: dict[str, Any] = {
        "true": texts(rule, random, 900, 33),
        "false": texts(np.roll(rule, 7), random, NUM_PLANTED, 33),
        "asked": texts(np.roll(rule, 7), random, 4, 33),
    }
    for name, documents in of.items():
        Roxxel(tmp_path / f"{name}.rox").write(documents, vocab_size=64)
    (tmp_path / "tiny.py").write_text(MODEL)
    (tmp_path / "run.toml").write_text(CONFIG)
    assert main(["train", str(tmp_path / "run.toml")]) == 0
    run = tmp_path / "run"
    candidates = {source: late(run, source) for source in ("self", "claims")}
    assert sum(map(len, candidates.values())) == 32
    assert len(candidates["claims"]) == NUM_PLANTED

    found = replay(run, candidates, each=True)

    assert found.comparison.is_equal
    first = [branch.name for branch in found.branches[:11]]
    num_planted = sum(name.startswith("claims:") for name in first)
    print(f"{num_planted} of {NUM_PLANTED} planted documents are in the first 11")
    assert num_planted >= 7
