"""A run that goes on after damaged blocks does not learn their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from roxxel_curriculum import Curriculum, Phase
from roxxel_format import ChecksumError, Roxxel
from roxxel_train import run_data
from roxxel_train.audit import audit

from .helpers import VOCABULARY, by_mask, masked_loss, mesh_of, pair, rows, trainer

MARK = VOCABULARY - 1
"""A token that the corpora lack: a loss that masks by hand leaves it out."""

BLOCK = 512
FIELDS = ("tokens", "loss_mask")
PHASES = (Phase(6, 4, 17), Phase(6, 2, 33))


def by_hand(model: Any, tokens: Any) -> Any:
    """Leave out the mark, which the tokens of a masked block replace by 0."""
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


def started(folder: Path, corpus: Roxxel, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "curriculum": Curriculum(corpus, PHASES),
        "log_every": 1,
        "loss_fn": by_mask,
        "fields": FIELDS,
        "check": "blocks",
        "on_damage": "mask",
    }
    return trainer(folder, **(defaults | options))


def weights(of: Any) -> list[Any]:
    return [np.asarray(x) for x in jax.tree.leaves(nnx.state(of.model, nnx.Param))]


def batches(of: Any) -> list[Any]:
    return [of.sampler.batch(step) for step in range(of.sampler.total_steps)]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in FIELDS:
            assert np.array_equal(one[name], other[name])


def test_the_weights_are_those_of_data_that_was_masked_by_hand(tmp_path: Path) -> None:
    corpus = write(tmp_path / "a")
    whole = corpus.tokens[:].copy()
    damaged, *_ = first_steps(corpus)
    flip(corpus, damaged)
    run = started(tmp_path / "a", corpus)

    run.run()

    (block,) = run.sampler.damaged
    per_block = BLOCK // corpus.dtype.itemsize
    assert (block.start, block.stop) == (damaged * per_block, (damaged + 1) * per_block)
    marked = whole.copy()
    marked[block.start : block.stop] = MARK
    by_hand_corpus = Roxxel(tmp_path / "b" / "web_*.rox")
    by_hand_corpus.write([marked], vocab_size=VOCABULARY, separator=None)
    hand = started(
        *(tmp_path / "b", by_hand_corpus),
        loss_fn=by_hand,
        fields=("tokens",),
        on_damage="raise",
        check="headers",
    )
    hand.run()
    for one, other in zip(weights(run), weights(hand), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


def test_the_block_is_masked_from_the_first_step_that_reads_it(tmp_path: Path) -> None:
    corpus = write(tmp_path)
    plain = Curriculum(corpus, PHASES).sampler(0, fields=FIELDS)
    before = [plain.batch(step) for step in range(plain.total_steps)]
    *_, (damaged, first) = first_steps(corpus).items()
    flip(corpus, damaged)
    run = started(tmp_path, corpus)

    assert run.run().complete

    (block,) = run.sampler.damaged
    assert block.step == first > 0
    for step, batch in enumerate(batches(run)):
        assert np.array_equal(
            batch["tokens"], before[step]["tokens"] * batch["loss_mask"]
        )
    assert run_data(tmp_path / "run").state["damaged"] == [block.to_json()]
    assert run.plan().damaged == (block,)
    log = (tmp_path / "run" / "system.log").read_text()
    line = (
        f"step {block.step}: masks damaged block {damaged} (byte "
        f"{4096 + damaged * BLOCK} on) of web_00000.rox: tokens "
        f"[{block.start}, {block.stop}) of self; from here on these "
        f"{block.num_tokens} tokens are 0 and their loss_mask is 0; to repair "
        "the shard for other runs: roxxel-format repair web_00000.rox --from COPY"
    )
    assert line in log
    assert log.count("masks damaged") == 1
    logged = rows(tmp_path)
    assert logged[block.step]["loss_weight"] < logged[0]["loss_weight"]


def test_an_audit_of_the_run_finds_no_difference(tmp_path: Path) -> None:
    corpus = write(tmp_path)
    flip(corpus, [*first_steps(corpus)][-1])
    run = started(tmp_path, corpus)
    run.run()
    assert run.sampler.damaged

    result = audit(run.sampler, rows(tmp_path))

    assert result.is_sound
    assert result.num_steps == 12


@pytest.mark.parametrize("is_repaired", [False, True])
def test_a_resumed_run_has_the_same_batches(
    tmp_path: Path, *, is_repaired: bool
) -> None:
    """Some blocks are first read before, some after the run has stopped."""

    def trips(state: Any) -> None:
        if int(state.step[...]) == 4:
            raise RuntimeError("it tripped")

    runs: list[Any] = []
    for name in ("whole", "resumed"):
        corpus = write(tmp_path / name)
        firsts = [*first_steps(corpus).items()]
        early = [block for block, step in firsts if 0 < step < 4][:2]
        late = [block for block, step in firsts if step > 6][-2:]
        for block in (*early, *late):
            flip(corpus, block)
        if name == "resumed":
            broken = started(tmp_path / name, corpus, eval_fn=trips, eval_every=1)
            with pytest.raises(RuntimeError, match="it tripped"):
                broken.run()
            assert {each.block for each in broken.sampler.damaged} == {*early}
            for block in early if is_repaired else ():
                flip(corpus, block)
        run = started(tmp_path / name, corpus, pair=pair(seed=5) if runs else None)
        run.run()
        runs.append(run)

    whole, resumed = runs
    assert whole.sampler.damaged == resumed.sampler.damaged
    assert len(whole.sampler.damaged) > 2
    assert_same(batches(whole), batches(resumed))
    digests = [
        [row["digest"] for row in rows(tmp_path / name) if row["kind"] == "train"]
        for name in ("whole", "resumed")
    ]
    assert digests[0] == digests[1]
    log = (tmp_path / "resumed" / "run" / "system.log").read_text()
    assert "masks 2 damaged blocks of 512 tokens, since step" in log


def test_a_run_of_several_devices_masks_the_same(tmp_path: Path) -> None:
    runs: list[Any] = []
    for devices in (1, 2):
        corpus = write(tmp_path / str(devices))
        flip(corpus, [*first_steps(corpus)][-1])
        run = started(
            *(tmp_path / str(devices), corpus),
            mesh=mesh_of(devices),
            grad_accum_steps=2,
        )
        run.run()
        runs.append(run)

    assert runs[0].sampler.damaged == runs[1].sampler.damaged != ()
    assert_same(*map(batches, runs))


def test_by_default_a_damaged_block_is_an_error(tmp_path: Path) -> None:
    corpus = write(tmp_path)
    block = [*first_steps(corpus)][-1]
    flip(corpus, block)

    with pytest.raises(ChecksumError, match=f"block {block} of the tokens"):
        started(tmp_path, corpus, on_damage="raise").run()


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check": "headers"}, 'does not find damaged blocks; give check="blocks"'),
        ({"fields": ("tokens",)}, r"give fields=\('tokens', 'loss_mask'\)"),
        ({"on_damage": "skip"}, 'on_damage must be "raise" or "mask", got \'skip\''),
        ({"loss_fn": by_hand}, "the loss does not use the field 'loss_mask'"),
    ],
)
def test_a_run_that_cannot_mask_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    if options.get("loss_fn"):
        options = {"loss_fn": lambda model, batch: by_hand(model, batch["tokens"])}

    with pytest.raises(ValueError, match=message):
        started(tmp_path, write(tmp_path), **options)


def test_a_run_with_masked_blocks_keeps_its_mask(tmp_path: Path) -> None:
    """Without the field, the resumed run would learn the zeros."""
    corpus = write(tmp_path)
    flip(corpus, [*first_steps(corpus)][-1])
    started(tmp_path, corpus).run()
    longer = Curriculum(corpus, [*PHASES, Phase(2, 4, 33)])

    with pytest.raises(ValueError, match=r"the run masks damaged block .*loss_mask"):
        started(
            *(tmp_path, corpus),
            curriculum=longer,
            fields=("tokens",),
            loss_fn=by_hand,
            on_damage="raise",
        )
