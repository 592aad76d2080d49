"""The state of a run alone gives the batches that the run has read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    Policy,
    Sampler,
    StateMismatch,
    recorded_sampler,
)
from roxxel_curriculum.state import recorded_phases
from roxxel_curriculum.testing import PositionReader
from roxxel_format import ShardError

from .helpers import Declared, declarations, digest

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def check_recorded(
    sampler: Sampler, step: int, readers: Mapping[str, PositionReader]
) -> None:
    """Compare the recorded sampler of a state with the sampler that wrote the state."""
    state = json.loads(json.dumps(sampler.state(step)))

    recorded = recorded_sampler(state, readers)

    assert recorded.total_steps == step
    assert recorded.state(step) == sampler.state(step)
    assert recorded.delivered_tokens(step) == sampler.delivered_tokens(step)
    for each in range(step):
        assert digest(recorded, each) == digest(sampler, each)
        assert recorded.phase(each) == sampler.phase(each)
    alone = recorded_sampler(state, None)
    assert alone.plan() == recorded.plan()
    for each in range(step):
        places, read = alone.windows(each), sampler.windows(each)
        assert np.array_equal(places.source, read.source)
        assert np.array_equal(places.start, read.start)
        assert np.array_equal(places.stop, read.stop)
    for name in recorded.source_names:
        found = list(recorded.where(name, 0, 200))
        assert found == list(sampler.where(name, 0, 200, until=step))


@SLOW
@given(declared=declarations(), seed=st.integers(0, 2**64), data=st.data())
def test_a_state_alone_gives_the_steps_before_it(
    declared: Declared, seed: int, data: st.DataObject
) -> None:
    sampler = declared.curriculum().sampler(seed)

    step = data.draw(st.integers(1, sampler.total_steps))
    check_recorded(sampler, step, declared.readers)


@SLOW
@given(declared=declarations(), data=st.data())
def test_a_state_alone_knows_an_edit_inside_a_phase(
    declared: Declared, data: st.DataObject
) -> None:
    before = declared.curriculum().sampler(1)
    step = data.draw(st.integers(1, before.total_steps))
    state = before.state(step)
    current = len(state["phases"]) - 1
    assume(step < before.phases[current].stop)
    edited = [*declared.phases]
    only_self = {**dict.fromkeys(declared.readers, 0), "self": 1}
    edited[current] = replace(edited[current], weights=only_self)
    sampler = declared.curriculum(phases=edited).sampler(state=state)

    check_recorded(sampler, sampler.total_steps, declared.readers)


def test_a_source_that_stops_the_run_is_recorded() -> None:
    readers = {"self": PositionReader(500), "small": PositionReader(200, "small")}
    curriculum = Curriculum(
        readers["self"],
        [Phase(60, 4, 11, {"self": 1, "small": 1})],
        {"small": readers["small"]},
        policies={"small": Policy(2, "stop")},
    )
    sampler = curriculum.sampler(3)

    check_recorded(sampler, sampler.total_steps, readers)


def test_a_source_that_gave_nothing_may_be_absent() -> None:
    web, code = PositionReader(500), PositionReader(500, "code")
    curriculum = Curriculum(
        web, [Phase(5, 2, 11), Phase(5, 2, 11, {"code": 1})], {"code": code}
    )
    sampler = curriculum.sampler(0)

    recorded = recorded_sampler(sampler.state(5), {"self": web})

    assert recorded.source_names == ("self",)
    assert digest(recorded, 4) == digest(sampler, 4)
    with pytest.raises(CurriculumError, match="the run read from source 'code', which"):
        recorded_sampler(sampler.state(6), {"self": web})


def test_a_reader_of_other_tokens_is_refused() -> None:
    state = Curriculum(PositionReader(500), [Phase(5, 2, 11)]).sampler(0).state(5)

    with pytest.raises(StateMismatch, match="'self' holds other data: fingerprint"):
        recorded_sampler(state, {"self": PositionReader(500, "other")})
    with pytest.raises(StateMismatch, match="other data: 60 tokens instead of 500"):
        recorded_sampler(state, {"self": PositionReader(60)})


def test_a_state_of_step_0_records_nothing() -> None:
    web = PositionReader(500)
    state = Curriculum(web, [Phase(5, 2, 11)]).sampler(0).state(0)

    with pytest.raises(CurriculumError, match="at step 0, so it records no batches"):
        recorded_sampler(state, {"self": web})


def test_places_need_no_corpus_but_tokens_and_documents_do() -> None:
    web = PositionReader(500)
    sampler = Curriculum(web, [Phase(5, 2, 11)]).sampler(0)

    alone = recorded_sampler(sampler.state(5), None)

    assert alone.windows(4).start.tolist() == sampler.windows(4).start.tolist()
    for read in (lambda: alone.batch(4), lambda: alone.locate(4, 0)):
        with pytest.raises(ShardError, match="source 'self' has no reader here"):
            read()


def test_a_state_says_which_part_of_a_corpus_a_proxy_reads() -> None:
    web = PositionReader(100_000)
    small = Curriculum(web, [Phase(50, 2, 11)]).proxy(scale=0.5, seed=3).curriculum
    sampler = small.sampler(0)
    state = json.loads(json.dumps(sampler.state(9)))

    past = recorded_sampler(state, {"self": web})

    places = recorded_sampler(state, None).windows(8)
    assert places.start.tolist() == sampler.windows(8).start.tolist()
    for step in range(9):
        assert (past.batch(step) == sampler.batch(step)).all()


def test_a_phase_of_a_state_says_of_no_source_that_it_runs_out() -> None:
    sampler = Curriculum(PositionReader(500), [Phase(9, 2, 11)]).sampler(0)

    [phase] = recorded_phases(sampler.state(5))

    assert (phase.stop, phase.spent, phase.exhausted, phase.mixes) == (5, (), {}, ())
