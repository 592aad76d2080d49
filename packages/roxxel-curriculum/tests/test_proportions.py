"""A run's batches keep the weights, run out where they must, and waste little."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum._order.rounds import cut_spans
from roxxel_curriculum.testing import PositionReader

from .helpers import NAMES, Declared, curricula, declarations

SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@SLOW
@given(curriculum=curricula())
def test_every_prefix_since_the_last_exhaustion_is_within_three_of_the_weights(
    curriculum: Curriculum,
) -> None:
    sampler = curriculum.sampler(1)
    for phase in sampler.phases:
        size = phase.batch_size
        bounds = [leg.start for leg in phase.legs] + [phase.num_samples]
        # Sources in the order of samples; those of skipped steps are not delivered.
        order: dict[int, str] = {}
        for step in range(phase.start, phase.stop):
            first = phase.data_step(step - phase.start) * size
            for row, source in enumerate(sampler.windows(step).source):
                order[first + row] = sampler.source_names[int(source)]
        for start, stop in pairwise(bounds):
            leg = phase.leg_of(start)
            weights = {name: phase.weights[name] for name in leg.blend.sources}
            total = sum(weights.values())
            given_so_far = phase.counts(start)
            base = dict(given_so_far)
            for sample in range(start, stop):
                if sample in order:
                    given_so_far[order[sample]] += 1
                else:
                    given_so_far = phase.counts(sample + 1)
                for name, weight in weights.items():
                    share = Fraction((sample + 1 - start) * weight, total)
                    assert abs(given_so_far[name] - base[name] - share) <= 3


@SLOW
@given(curriculum=curricula())
def test_tokens_by_formula_are_those_of_the_windows(curriculum: Curriculum) -> None:
    sampler = curriculum.sampler(1)
    counted = dict.fromkeys(sampler.source_names, 0)
    assert sampler.delivered_tokens(0) == sampler.planned_tokens(0) == counted

    for step in range(sampler.total_steps):
        seq_len = sampler.shape(step)[1]
        for source in sampler.windows(step).source:
            counted[sampler.source_names[int(source)]] += seq_len
        assert sampler.delivered_tokens(step + 1) == counted

    plan = curriculum.plan(1)
    assert counted == {source.name: source.tokens for source in plan.sources}


@SLOW
@given(curriculum=curricula())
def test_tokens_given_are_within_three_samples_of_those_planned(
    curriculum: Curriculum,
) -> None:
    sampler = curriculum.sampler(1)
    for step in range(1, sampler.total_steps + 1):
        given_so_far = sampler.delivered_tokens(step)
        planned = sampler.planned_tokens(step)
        seq_len = sampler.shape(step - 1)[1]
        assert planned.keys() == given_so_far.keys()
        for name, tokens in given_so_far.items():
            assert abs(tokens - planned[name]) <= 3 * seq_len
        total = sum(given_so_far.values())
        assert sum(planned.values()) == pytest.approx(total)


def test_planned_tokens_are_shares_of_the_weights_in_each_phase() -> None:
    readers = {name: PositionReader(10**9, name) for name in NAMES[:3]}
    weights = {"self": 1, "code": 2, "math": 5}
    first = Phase(7, 3, 10, weights)
    second = Phase(9, 2, 30, {"self": 1, "math": 1})
    mix = {name: readers[name] for name in ("code", "math")}
    sampler = Curriculum(readers["self"], [first, second], mix).sampler(0)

    planned = sampler.planned_tokens(5)
    assert planned == {"self": 150 / 8, "code": 300 / 8, "math": 750 / 8}

    past = sampler.delivered_tokens(7)
    assert sampler.planned_tokens(11) == {
        "self": past["self"] + 120,
        "code": past["code"],
        "math": past["math"] + 120,
    }


@pytest.mark.parametrize("step", [-1, 13])
def test_tokens_of_steps_outside_the_run_are_refused(step: int) -> None:
    sampler = Curriculum(PositionReader(1000, "self"), [Phase(12, 2, 8)]).sampler(0)

    with pytest.raises(IndexError, match=r"outside \[0, 12\]"):
        sampler.delivered_tokens(step)
    with pytest.raises(IndexError, match=r"outside \[0, 12\]"):
        sampler.planned_tokens(step)


@SLOW
@given(declared=declarations(), data=st.data())
def test_a_skip_moves_the_rest_of_the_data_forward(
    declared: Declared, data: st.DataObject
) -> None:
    phase = declared.phases[0]
    at = data.draw(st.integers(0, (phase.steps or 1) - 1))
    count = data.draw(st.integers(1, 4))

    def of(steps: int, skips: list[tuple[int, int]]) -> Curriculum:
        alone = Phase(steps, phase.batch_size, phase.seq_len, phase.weights)
        return declared.curriculum(phases=[alone], skips=skips, overlap=0, longest=None)

    steps = phase.steps or 1
    plain = of(steps + count, []).sampler(1)
    skipping = of(steps, [(at, count)])

    sampler = skipping.sampler(1)
    assert skipping.total_steps == steps
    for step in range(steps):
        expected = plain.batch(step if step < at else step + count)
        assert np.array_equal(sampler.batch(step), expected)
    planned = skipping.plan().phases[0]
    assert planned.skipped_steps == count
    skipped = sum(source.skipped for source in planned.sources)
    assert skipped == count * phase.batch_size


@SLOW
@given(curriculum=curricula())
def test_the_plan_counts_what_is_delivered(curriculum: Curriculum) -> None:
    sampler = curriculum.sampler(1)
    plan = curriculum.plan(1)

    for phase in plan.phases:
        steps: dict[str, list[int]] = {name: [] for name in NAMES}
        for step in range(phase.start, phase.stop):
            for source in sampler.windows(step).source:
                steps[sampler.source_names[int(source)]].append(step)
        for source in phase.sources:
            found = steps[source.name]
            assert source.samples == len(found)
            assert source.first_step == (found[0] if found else None)
            assert source.last_step == (found[-1] if found else None)
            assert source.tokens == len(found) * phase.seq_len
            if source.exhausted_step is not None:
                assert not any(step > source.exhausted_step for step in found)
        assert {source.name for source in phase.sources} >= {
            name for name, found in steps.items() if found
        }


@settings(max_examples=40, deadline=None)
@given(
    longest=st.integers(2, 5000),
    ratio=st.integers(6400, 10**6),
    data=st.data(),
)
def test_waste_stays_below_a_hundredth_of_a_large_source(
    longest: int, ratio: int, data: st.DataObject
) -> None:
    num_tokens = longest * ratio + data.draw(st.integers(0, longest - 1))
    declared = data.draw(
        st.lists(
            st.builds(
                Phase,
                st.integers(1, 10**7),
                st.integers(1, 64),
                st.integers(1, longest),
            ),
            min_size=2,
            max_size=6,
        )
    )
    curriculum = Curriculum(PositionReader(num_tokens), declared, longest=longest)

    before: float = 0
    for phase in curriculum.plan().phases:
        source = phase.sources[0]
        assert source.unfinished_tokens <= num_tokens / 100
        ended = int(source.epochs) - int(before) + 1
        assert source.tail_tokens <= ended * num_tokens / 100
        before = source.epochs


def test_the_waste_of_a_small_source_is_printed() -> None:
    curriculum = Curriculum(
        PositionReader(1_000_000),
        [Phase(100, 1, 999), Phase(100, 1, 333), Phase(100, 1, 777)],
    )

    plan = curriculum.plan()

    assert plan.sources[0].waste_tokens > 0
    assert f"{plan.sources[0].waste_tokens / 1000:.4g} k" in str(plan)


@pytest.mark.parametrize("seq_len", [7, 30, 90])
def test_what_a_dropped_source_gave_and_wasted_makes_up_its_epochs(
    seq_len: int,
) -> None:
    weights = {"code": 1, "self": 1e-3}
    curriculum = Curriculum(
        PositionReader(10**5),
        [Phase(200, 1, 30, weights), Phase(200, 1, seq_len, weights)],
        {"code": PositionReader(1003)},
        policies={"code": 2},
        longest=90,
    )

    code = curriculum.plan().sources[1]

    # Shorter samples take some of the tail that the first phase left.
    assert code.tokens + code.waste_tokens == 2 * 1003


@pytest.mark.parametrize("seq_len", [30, 90])
def test_the_tail_of_an_epoch_is_counted_once(seq_len: int) -> None:
    phases = [Phase(epochs=1, batch_size=1, seq_len=length) for length in (30, seq_len)]
    curriculum = Curriculum(PositionReader(1003), phases, longest=90)

    source = curriculum.plan().sources[0]

    assert source.tokens + source.waste_tokens == 2 * 1003


@pytest.mark.parametrize("seq_len", [1, 2, 32768, 32769, 100_003])
def test_samples_of_any_length_are_consecutive_tokens(seq_len: int) -> None:
    curriculum = Curriculum(
        PositionReader(3_000_017),
        [Phase(20, 3, seq_len), Phase(20, 3, 4)],
        longest=max(seq_len, 4),
    )
    sampler = curriculum.sampler(1)

    for step in (0, 1, 19, 20, 39):
        batch = sampler.batch(step)
        within = np.arange(sampler.shape(step)[1])
        assert np.array_equal(batch, batch[:, :1] + within)
        assert np.array_equal(batch[:, 0], sampler.windows(step).start)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5, 48, 49, 97, 101, 2**31 - 1, 2**31])
@pytest.mark.parametrize("overlap", [0, 1])
def test_a_source_of_any_size_gives_an_epoch(num_tokens: int, overlap: int) -> None:
    seq_len = min(num_tokens, 2)
    if seq_len <= overlap:
        return
    steps = min(num_tokens // seq_len, 500)
    curriculum = Curriculum(
        PositionReader(num_tokens), [Phase(steps, 1, seq_len)], overlap=overlap
    )
    sampler = curriculum.sampler(1)

    for step in range(steps):
        windows = sampler.windows(step)
        assert 0 <= windows.start[0] <= windows.stop[0] - seq_len
        assert windows.stop[0] <= num_tokens


def test_an_overlap_predicts_every_token_of_a_span_once() -> None:
    curriculum = Curriculum(
        PositionReader(64 * 1000 + 10),
        [Phase(epochs=1, batch_size=1, seq_len=65)],
        overlap=1,
    )
    sampler = curriculum.sampler(1)
    spans = cut_spans(64 * 1000 + 10, longest=65, overlap=1)
    predicted = np.zeros(spans.num_tokens, np.int64)

    for step in range(curriculum.total_steps):
        windows = sampler.windows(step)
        predicted[windows.start[0] + 1 : windows.stop[0]] += 1

    assert predicted.max() == 1
    by_span = predicted[: spans.num_spans * spans.span_tokens].reshape(
        spans.num_spans, spans.span_tokens
    )
    # From the second token of a span on, all but its tail is predicted.
    tail = (spans.span_tokens - 1) % 64
    assert by_span[:, 1 : spans.span_tokens - tail].all()
    assert not by_span[:, 0].any()
