"""Damaged blocks: masked from a step on, and no other token of any batch changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    DamagedBlock,
    Phase,
    StateMismatch,
    recorded_sampler,
)
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ChecksumError, Roxxel

from .helpers import Declared, declarations

FIELDS = ("tokens", "segment_ids", "positions", "source", "loss_mask")
LAW = settings(max_examples=60, deadline=None)
PHASES = [Phase(6, 4, 129), Phase(6, 2, 257)]


def drawn(data: st.DataObject, declared: Declared, total: int) -> list[DamagedBlock]:
    """Draw damaged blocks of some sources, each from some step on."""
    blocks: list[DamagedBlock] = []
    for name, reader in declared.readers.items():
        size = data.draw(st.integers(1, reader.num_tokens))
        numbers = st.integers(0, (reader.num_tokens - 1) // size)
        for number in data.draw(st.sets(numbers, max_size=4)):
            start, stop = number * size, min((number + 1) * size, reader.num_tokens)
            step = data.draw(st.integers(0, total - 1))
            blocks.append(DamagedBlock(step, name, start, stop, "a.rox", number, start))
    return blocks


@LAW
@given(data=st.data(), declared=declarations())
def test_masked_tokens_are_0_and_nothing_else_changes(
    data: st.DataObject, declared: Declared
) -> None:
    plain = declared.curriculum().sampler(3, fields=FIELDS)
    blocks = drawn(data, declared, plain.total_steps)
    sampler = plain.with_damaged(blocks)
    step = data.draw(st.integers(0, sampler.total_steps - 1))

    before, batch = plain.batch(step), sampler.batch(step)

    windows = sampler.windows(step)
    kept = np.ones(sampler.shape(step), np.int32)
    for row, column in np.ndindex(kept.shape):
        name = sampler.source_names[windows.source[row]]
        at = int(windows.start[row]) + column
        kept[row, column] = not any(
            b.source == name and b.start <= at < b.stop and b.step <= step
            for b in blocks
        )
    assert np.array_equal(batch["loss_mask"], kept)
    assert np.array_equal(batch["tokens"], before["tokens"] * kept)
    for name in ("segment_ids", "positions", "source"):
        assert np.array_equal(before[name], batch[name])
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, kept.shape[1])] * 2)))
    rows = data.draw(st.lists(st.integers(0, kept.shape[0] - 1)))
    part = sampler.rows(step, rows, slice(start, stop))
    assert np.array_equal(part["loss_mask"], kept[rows, start:stop])
    assert np.array_equal(part["tokens"], batch["tokens"][rows, start:stop])


@LAW
@given(data=st.data(), declared=declarations())
def test_a_state_records_the_blocks_that_were_masked_before_its_step(
    data: st.DataObject, declared: Declared
) -> None:
    plain = declared.curriculum().sampler(3, fields=FIELDS)
    total = plain.total_steps
    sampler = plain.with_damaged(drawn(data, declared, total))
    step = data.draw(st.integers(1, total))

    state = json.loads(json.dumps(sampler.state(step)))

    known = tuple(block for block in sampler.damaged if block.step < step)
    resumed = declared.curriculum().sampler(3, state, fields=FIELDS)
    past = recorded_sampler(state, declared.readers, fields=FIELDS)
    assert resumed.damaged == past.damaged == known
    assert declared.curriculum().plan(state=state).damaged == known
    sampler.check(state)
    resumed.check(state)
    assert resumed.state(step) == state
    last = step - 1
    for each in (resumed, past):
        for name, value in sampler.batch(last).items():
            assert np.array_equal(each.batch(last)[name], value)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Roxxel, Any]:
    """Return a corpus with a damaged block, and its tokens before the damage."""
    corpus = Roxxel(tmp_path / "web_*.rox")
    random = np.random.default_rng(0)
    corpus.write((random.integers(1, 99, 50) for _ in range(200)), vocab_size=99)
    whole = corpus.tokens[:].copy()
    path = Path(corpus.paths[0])
    data = bytearray(path.read_bytes())
    data[4096 + 4096 + 5] ^= 1
    path.write_bytes(data)
    return Roxxel(tmp_path / "web_*.rox"), whole


def first_error(sampler: Any) -> tuple[int, ChecksumError]:
    for step in range(sampler.total_steps):
        try:
            sampler.batch(step)
        except ChecksumError as error:
            return step, error
    raise AssertionError("no step reads a damaged block")


def test_a_run_reads_around_a_damaged_block(damaged: tuple[Roxxel, Any]) -> None:
    """The block is masked from the first step of a window that reads it."""
    corpus, whole = damaged
    curriculum = Curriculum(corpus, PHASES)
    sampler = curriculum.sampler(1, fields=FIELDS, check="blocks")
    step, error = first_error(sampler)

    (block,) = sampler.damaged_by(error, range(12))
    masking = sampler.with_damaged([block])

    itemsize = corpus.dtype.itemsize
    start, stop = 4096 // itemsize, min(8192 // itemsize, corpus.num_tokens)
    assert block == DamagedBlock(step, "self", start, stop, "web_00000.rox", 1, 8192)
    assert sampler.damaged_by(error, range(step)) == []
    fixed = whole.copy()
    fixed[start:stop] = 0
    for each in range(12):
        windows = masking.windows(each)
        batch = masking.batch(each)
        for row, first in enumerate(windows.start):
            expected = fixed[first : windows.stop[row]]
            assert np.array_equal(batch["tokens"][row], expected)
    # The sampler that masks nothing is unchanged.
    assert sampler.damaged == ()


def test_errors_about_other_bytes_name_no_block(damaged: tuple[Roxxel, Any]) -> None:
    sampler = Curriculum(damaged[0], PHASES).sampler(1, check="blocks")
    _, error = first_error(sampler)
    facts = {"path": error.path, "block": error.block, "byte_offset": 0}

    index = ChecksumError("damaged", section="documents", **facts)  # pyright: ignore[reportArgumentType] - a dict
    other = Curriculum(PositionReader(10_000), PHASES).sampler(1)

    assert sampler.damaged_by(index, range(12)) == []
    assert other.damaged_by(error, range(12)) == []


def test_rows_with_masked_tokens_are_not_hinted() -> None:
    """Their reads request other ranges, so the bytes of a hint would be wasted."""
    reader = PositionReader(10_000)
    sampler = Curriculum(reader, [Phase(9, 4, 129)]).sampler(1)
    start, stop = (
        int(ends[2]) for ends in (sampler.windows(5).start, sampler.windows(5).stop)
    )
    block = DamagedBlock(5, "self", start + 3, stop - 3, "a.rox", 0, 4096)

    sampler.with_damaged([block]).will_need(5)

    ((starts, length),) = reader.hints
    assert (len(starts), length) == (3, 129)
    assert start not in starts


def damage(step: int = 5, **changed: Any) -> Any:
    block = DamagedBlock(step, "self", 300, 500, "a.rox", 1, 8192)
    sampler = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)]).sampler(1)
    return sampler.with_damaged([DamagedBlock(**block.to_json() | changed)])


def test_a_state_with_other_damage_is_not_the_past_of_a_sampler() -> None:
    state = damage().state(9)

    damage().check(state)
    with pytest.raises(
        StateMismatch, match=r"from step 5 on, .* only in the state: bl"
    ):
        damage(step=8).check(state)
    with pytest.raises(StateMismatch, match=r"only in the curriculum: .* \[300, 501\)"):
        damage(stop=501).check(state)


@pytest.mark.parametrize(
    "change",
    [
        *({"source": "x"}, {"start": -1}, {"stop": 300}, {"stop": 10_001}),
        *({"step": 9}, {"step": -1}, {"file": 3}, {"block": None}),
    ],
)
def test_a_changed_block_in_a_state_is_found(change: dict[str, Any]) -> None:
    state = damage().state(9)
    del state["digest"]
    state["damaged"][0] |= change

    with pytest.raises(StateMismatch):
        Curriculum(PositionReader(10_000), [Phase(9, 4, 129)]).sampler(1, state)


def test_the_digest_of_a_state_covers_its_damage() -> None:
    state = damage().state(9)
    state["damaged"][0]["stop"] -= 1

    with pytest.raises(StateMismatch, match="the digest does not match"):
        Curriculum(PositionReader(10_000), [Phase(9, 4, 129)]).sampler(1, state)
    assert "damaged" not in damage().state(5)


def test_plan_and_diff_say_from_which_step_a_block_is_masked() -> None:
    curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
    plain, state = curriculum.sampler(1).state(8), damage().state(8)

    plan = curriculum.plan(state=state)
    diff = curriculum.plan(state=plain).diff(plan)

    text = " ".join(str(plan).split())
    assert (
        "from step 5 on, the run masks damaged block 1 (byte 8192 on) of a.rox: "
        "tokens [300, 500) of self"
    ) in text
    assert plan.to_dict()["damaged"][0]["step"] == 5
    assert diff.step == 5
    assert diff.changes[0].startswith("from step 5 on, the run masks damaged block 1")
    assert "does not mask" in str(plan.diff(curriculum.plan(state=plain)))
