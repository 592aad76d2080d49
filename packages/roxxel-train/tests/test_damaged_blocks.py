"""A damaged block stops a run, which then continues without its tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import ChecksumError, Roxxel
from roxxel_train import RunFolder
from roxxel_train.audit import audit

from .helpers import VOCABULARY, by_mask, masked_loss, pair, rows, trainer

MARK = VOCABULARY - 1
"""A token that the corpora lack: a loss that masks by hand leaves it out."""

BLOCK = 512
FIELDS = ("tokens", "loss_mask")
PHASES = (Phase(6, 4, 17), Phase(6, 2, 33))


def by_hand(model: Any, tokens: Any) -> Any:
    """Leave out the mark; the tokens of a withdrawn range are 0."""
    is_marked = tokens == MARK
    return masked_loss(model, tokens * ~is_marked, ~is_marked)


def write(folder: Path) -> Roxxel:
    """Write a corpus of several blocks."""
    random = np.random.default_rng(0)
    corpus = Roxxel(folder / "web_*.rox")
    corpus.write(
        (random.integers(1, MARK, 40) for _ in range(300)),
        vocab_size=VOCABULARY,
        block_size=BLOCK,
    )
    return Roxxel(folder / "web_*.rox")


def flip(corpus: Roxxel, block: int) -> None:
    """Flip a bit of a block of tokens; flipping it again repairs the block."""
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[4096 + block * BLOCK + 7] ^= 1
    path.write_bytes(data)


def first_steps(corpus: Roxxel) -> dict[int, int]:
    """Return the first step that reads each block; the blocks in this order."""
    sampler = Curriculum(corpus, PHASES).sampler(0)
    size = BLOCK // corpus.dtype.itemsize
    firsts: dict[int, int] = {}
    for block in range(corpus.num_tokens // size):
        found = next(sampler.where("self", block * size, (block + 1) * size), None)
        if found is not None:
            firsts[block] = found.step
    return dict(sorted(firsts.items(), key=lambda item: item[1]))


def started(
    folder: Path, corpus: Roxxel, data: Curriculum | None = None, **options: Any
) -> Any:
    defaults: dict[str, Any] = {
        "curriculum": data or Curriculum(corpus, PHASES),
        "log_every": 1,
        "loss_fn": by_mask,
        "fields": FIELDS,
        "check": "blocks",
    }
    return trainer(folder, **(defaults | options))


def weights(of: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(of.model, nnx.Param))]


def without_of(error: BaseException) -> dict[str, list[str]]:
    """Return the option in the message of an error."""
    found = re.search(
        r"without=\{\"self\": \[\"(tokens:\[[0-9]+,[0-9]+\))\"\]\}", str(error)
    )
    assert found is not None, str(error)
    return {"self": [found[1]]}


def test_the_weights_are_those_of_data_that_was_masked_by_hand(tmp_path: Path) -> None:
    corpus = write(tmp_path / "a")
    whole = corpus.tokens[:].copy()
    damaged, *_ = first_steps(corpus)
    flip(corpus, damaged)
    with pytest.raises(ChecksumError) as caught:
        Curriculum(corpus, PHASES).sampler(0, check="blocks").batch(0)
    without = without_of(caught.value)
    run = started(tmp_path / "a", corpus, Curriculum(corpus, PHASES, without=without))

    run.run()

    start, stop = run.sampler.withdrawals[0].tokens.bounds
    per_block = BLOCK // corpus.dtype.itemsize
    assert (start, stop) == (damaged * per_block, (damaged + 1) * per_block)
    marked = whole.copy()
    marked[start:stop] = MARK
    by_hand_corpus = Roxxel(tmp_path / "b" / "web_*.rox")
    by_hand_corpus.write([marked], vocab_size=VOCABULARY, separator=None)
    hand = started(
        *(tmp_path / "b", by_hand_corpus),
        loss_fn=by_hand,
        fields=("tokens",),
        check="headers",
    )
    hand.run()
    for one, other in zip(weights(run), weights(hand), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_run_that_stopped_at_a_damaged_block_continues_without_it(
    tmp_path: Path, *, is_repaired: bool
) -> None:
    """The steps before it stay, and repairing the block does not change the others."""
    corpus = write(tmp_path)
    plain = Curriculum(corpus, PHASES).sampler(0, fields=FIELDS)
    before = [plain.batch(step) for step in range(plain.total_steps)]
    *_, (damaged, first) = first_steps(corpus).items()
    flip(corpus, damaged)
    with pytest.raises(ChecksumError, match=r"--repair COPY") as caught:
        started(tmp_path, corpus).run()
    without = without_of(caught.value)
    if is_repaired:
        flip(corpus, damaged)

    data = Curriculum(corpus, PHASES, without=without)
    run = started(tmp_path, corpus, data, pair=pair(seed=5))
    summary = run.run()

    assert summary.complete
    assert 0 < summary.start_step <= first
    start, stop = run.sampler.withdrawals[0].tokens.bounds
    for step in range(run.sampler.total_steps):
        windows, batch = run.sampler.windows(step), run.sampler.batch(step)
        at = windows.start[:, None] + np.arange(batch["tokens"].shape[1])
        kept = (at < start) | (at >= stop) | (step < summary.start_step)
        assert np.array_equal(batch["loss_mask"], kept)
        assert np.array_equal(batch["tokens"], before[step]["tokens"] * kept)
    state = RunFolder(tmp_path / "run").data().state
    assert [entry["step"] for entry in state["without"]] == [summary.start_step]
    log = (tmp_path / "run" / "system.log").read_text()
    assert f"step {summary.start_step}: {stop - start} tokens of self withdrawn" in log
    assert "without={" in log
    logged = rows(tmp_path)
    assert logged[first]["loss_weight"] < before[first]["loss_mask"][:, 1:].sum()
    assert audit(run.sampler, logged).is_sound


def test_damage_in_a_held_out_set_names_the_set(tmp_path: Path) -> None:
    """The option in the error is for its curriculum, not for the training data."""
    held_out = write(tmp_path / "held-out")
    sets = {"web": Curriculum(held_out, [Phase(2, 4, 17)])}
    flip(held_out, next(iter(first_steps(held_out))))

    with pytest.raises(ChecksumError, match=r"eval_curriculum\['web'\]: .*without="):
        started(tmp_path, write(tmp_path), eval_curriculum=sets, eval_every=1).run()


def test_damage_outside_the_tokens_is_an_error(tmp_path: Path) -> None:
    corpus = write(tmp_path)
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    at = 4096 + -(-corpus.num_tokens * corpus.dtype.itemsize // BLOCK) * BLOCK
    data[at + 1] ^= 1
    path.write_bytes(data)
    fields = ("tokens", "segment_ids", "loss_mask")

    with pytest.raises(ChecksumError, match="block 0 of the documents"):
        started(tmp_path, corpus, fields=fields).run()
