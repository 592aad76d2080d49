"""A proxy repeats each source as often, and at the same places, as the big run."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, CurriculumError, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel, ShardError

from .helpers import delivered, digest

if TYPE_CHECKING:
    from pathlib import Path

    from roxxel_curriculum._order.rounds import Spans

NAMES = ("self", "code", "math")


def spans_of(curriculum: Curriculum) -> dict[str, Spans]:
    """Return how each source is cut."""
    return {
        name: cursor.stream.spans
        for phase in curriculum.phases
        for name, cursor in phase.cursors.items()
    }


@st.composite
def big_runs(draw: st.DrawFn) -> tuple[Curriculum, float, bool]:
    """Draw a curriculum, a scale at which each source has some spans, and a truth.

    The last value says whether every source repeats, so that none runs out.
    """
    names = NAMES[: draw(st.integers(1, 3))]
    scale = draw(st.sampled_from((1 / 2, 1 / 4, 1 / 8)))
    readers = {
        name: PositionReader(draw(st.integers(60_000, 200_000)), name) for name in names
    }
    phases = [
        Phase(
            draw(st.integers(20, 400)),
            draw(st.sampled_from((16, 32, 64))),
            draw(st.sampled_from((8, 16, 17, 32))),
            {name: draw(st.sampled_from((1, 2, 5))) for name in names},
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    mix = {name: readers[name] for name in names[1:]}
    policies = {name: draw(st.sampled_from(("repeat", "drop", 2))) for name in mix}
    curriculum = Curriculum(readers["self"], phases, mix, policies=policies)
    return curriculum, scale, {*policies.values()} <= {"repeat"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=big_runs(), seed=st.integers(0, 2**32))
def test_epochs_at_the_end_of_each_phase_differ_by_a_batch_and_parts_of_spans(
    drawn: tuple[Curriculum, float, bool], seed: int
) -> None:
    big, scale, all_repeat = drawn

    proxy = big.proxy(scale=scale, seed=seed)

    small = proxy.curriculum
    assert len(proxy.epochs) == len(big.phases) == len(small.phases)
    batch = max(phase.batch_size * phase.seq_len for phase in small.phases)
    spans = [spans_of(each) for each in (big, small)]
    for ends in proxy.epochs:
        # What one source has too much or too little, because its part is a whole number
        # of spans, the others get too little or too much of.
        rounded = 0.0
        for name, (of_big, _) in ends.items():
            whole, part = spans[0][name], spans[1][name]
            assert part.span_tokens == whole.span_tokens
            of_spans = abs(part.num_spans - whole.num_spans * scale)
            assert of_spans <= 1 / 2 or part.num_spans == 1
            rounded += of_spans * part.span_tokens * of_big
        for name, (of_big, of_small) in ends.items():
            apart = abs(of_big - of_small) * spans[1][name].num_tokens
            # Where a source runs out sooner or later, the others stand in for it.
            assert apart <= batch + rounded or not all_repeat
            is_named = any(f"source {name!r}" in note for note in proxy.notes)
            assert is_named or apart <= batch


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=big_runs(), seed=st.integers(0, 2**32))
def test_no_token_outside_the_share_of_its_source_is_read(
    drawn: tuple[Curriculum, float, bool], seed: int
) -> None:
    big, scale, _ = drawn
    small = big.proxy(scale=scale, seed=seed).curriculum
    sampler = small.sampler(seed)

    read: dict[str, set[int]] = {name: set() for name in small.source_names}
    for step in range(0, sampler.total_steps, 7):
        batch = sampler.batch(step)
        assert (np.diff(batch) == 1).all()  # consecutive tokens of the whole source
        for row, source in enumerate(sampler.windows(step).source.tolist()):
            read[sampler.source_names[source]].add(int(batch[row, 0]))
        here = sampler.locate(step, 0)
        found = sampler.where(here.source, here.start, here.stop, until=step + 1)
        assert (step, 0) in [(each.step, each.row) for each in found]
    for name, starts in read.items():
        spans = spans_of(big)[name]
        touched = {start // spans.span_tokens for start in starts}
        assert len(touched) <= max(1, round(spans.num_spans * scale + 0.01))


def test_a_proxy_is_a_pure_function_of_curriculum_seed_and_scale() -> None:
    def made(seed: int) -> list[bytes]:
        mix = {"code": PositionReader(90_000, "code")}
        phases = [Phase(40, 8, 17, {"self": 3, "code": 1}), Phase(20, 4, 33)]
        big = Curriculum(PositionReader(80_000), phases, mix)
        sampler = big.proxy(scale=1 / 4, seed=seed).curriculum.sampler(0)
        return [digest(sampler, step) for step in range(sampler.total_steps)]

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_a_pickled_proxy_continues_the_run_of_the_proxy() -> None:
    run = Curriculum(PositionReader(100_000), [Phase(90, 4, 129)])
    proxy = run.proxy(scale=0.5, seed=0).curriculum
    state = proxy.sampler(seed=1).state(3)

    copy = pickle.loads(pickle.dumps(proxy))  # noqa: S301 - our own

    want, got = (each.sampler(state=state).batch(5) for each in (proxy, copy))
    np.testing.assert_array_equal(got, want)


def test_what_cannot_match_is_said_and_a_wrong_scale_refused() -> None:
    big = Curriculum(
        PositionReader(100_000),
        [Phase(200, 8, 64, {"self": 1, "tiny": 1})],
        {"tiny": PositionReader(600, "tiny")},
        policies={"tiny": "repeat"},
    )

    proxy = big.proxy(tokens=big.plan().total_tokens // 8)

    assert proxy.scale == pytest.approx(1 / 8)
    [note] = proxy.notes
    assert "'tiny'" in note
    assert "larger scale" in note
    assert note in str(proxy)
    assert "25 of 200 steps" in str(proxy)
    for options in ({}, {"scale": 1.0, "tokens": 9}, {"scale": 0.0}, {"scale": 2.0}):
        with pytest.raises(CurriculumError, match="scale"):
            big.proxy(**options)  # pyright: ignore[reportArgumentType] - the point


@pytest.mark.parametrize("scale", [1 / 8, 1 / 2, 1])
@pytest.mark.parametrize("rule", [{"policies": {"self": "drop"}}, {"max_epochs": 1}])
def test_a_run_that_reads_all_of_a_source_once_has_a_proxy_that_does(
    rule: dict[str, Any], scale: float
) -> None:
    big = Curriculum(PositionReader(200_000), [Phase(None, 8, 65, epochs=1)], **rule)

    proxy = big.proxy(scale=scale)

    assert abs(proxy.plan.total_steps - scale * big.total_steps) < 1


def test_a_proxy_without_a_whole_step_asks_for_a_larger_scale() -> None:
    rule = {"self": "stop"}
    big = Curriculum(PositionReader(200), [Phase(2, 10, 10)], policies=rule)

    with pytest.raises(CurriculumError, match=r"scale 0\.1 .*larger scale"):
        big.proxy(scale=0.1)


def test_withdrawn_documents_stay_withdrawn_in_a_proxy() -> None:
    reader = PositionReader(64_000, document_tokens=100)
    big = Curriculum(
        reader,
        [Phase(100, 8, 32)],
        without={"self": [range(320), "tokens:[40000,64000)"]},
    )

    small = big.proxy(scale=1 / 4).curriculum
    sampler = small.sampler(0, fields=["tokens", "loss_mask"])

    for step in range(sampler.total_steps):
        batch = sampler.batch(step)
        learned = batch["tokens"][batch["loss_mask"] == 1]
        assert ((learned >= 32_000) & (learned < 40_000)).all()
    assert delivered(sampler)["self"]


def test_a_part_lacks_a_mask_where_its_source_does(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path)
    corpus.write([range(1, 2000)], dtype="uint16")
    corpus.write_column("loss_mask", np.ones(1999, np.uint8))
    more = range(1, 2000)
    without = ["loss_mask"]
    corpus.write([more], dtype="uint16", exist="append", without_columns=without)
    small = Curriculum(corpus, [Phase(40, 2, 17)]).proxy(scale=1 / 2).curriculum

    with pytest.raises(ShardError, match="loss_mask"):
        small.sampler(0, fields=["tokens", "loss_mask"])


def test_a_column_of_a_part_has_the_items_of_its_tokens(tmp_path: Path) -> None:
    corpus = Roxxel(tmp_path)
    corpus.write([range(1, 2000)], dtype="uint16")
    # Token n is n + 1, and its item is n % 11.
    corpus.write_column("loss_mask", np.arange(1999) % 11, dtype="uint8")
    small = Curriculum(corpus, [Phase(40, 2, 17)]).proxy(scale=1 / 2).curriculum
    sampler = small.sampler(0, fields=["tokens", "loss_mask"])

    for step in range(sampler.total_steps):
        sampler.will_need(step)
        batch = sampler.batch(step)
        expected = (batch["tokens"] - 1) % 11 > 0
        assert np.array_equal(batch["loss_mask"], expected)


def test_a_proxy_says_that_it_trains_what_its_run_skips() -> None:
    big = Curriculum(PositionReader(64_000), [Phase(100, 8, 32)], skips=[(7, 20)])

    proxy = big.proxy(scale=1 / 4)

    assert any("20 steps" in note for note in proxy.notes)
    assert proxy.plan.total_steps == (100 + 20) / 4
