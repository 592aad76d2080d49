"""`longest` is fixed at the first step of a run, and only the state has it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase, Sampler, StateMismatch
from roxxel_curriculum.testing import PositionReader

from .helpers import Declared, declarations, digest, phases

SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
SHORT, LONG = Phase(60, 8, 65), Phase(20, 4, 257)


def make(*declared: Phase, **options: Any) -> Curriculum:
    return Curriculum(PositionReader(1_000_000), declared, **options)


def saved(sampler: Sampler, step: int) -> dict[str, Any]:
    return json.loads(json.dumps(sampler.state(step)))


def located(sampler: Sampler, step: int) -> list[Any]:
    return [sampler.locate(step, row) for row in range(sampler.shape(step)[0])]


def words(text: object) -> str:
    return " ".join(str(text).split())


@st.composite
def edits(draw: st.DrawFn, declared: Declared, step: int) -> list[Phase]:
    """Draw phases with the past of `declared` before `step` and any future."""
    past: list[Phase] = []
    start = 0
    for phase in declared.phases:
        steps = phase.steps or 0
        if start + steps >= step:
            if step > start:
                # The current phase: longer, shorter, or with other weights from here.
                steps = step - start + draw(st.integers(0, 20))
                weights = phase.weights
                if steps > step - start and draw(st.booleans()):
                    names = tuple(declared.readers)
                    weights = {name: draw(st.integers(0, 3)) for name in names}
                    weights["self"] = 1
                past.append(replace(phase, steps=steps, weights=weights))
            break
        past.append(phase)
        start += steps
    later = phases(tuple(declared.readers), max_len=90)
    return [*past, *draw(st.lists(later, min_size=0 if past else 1, max_size=3))]


@SLOW
@given(
    declared=declarations(),
    seed=st.integers(-(2**70), 2**70),
    data=st.data(),
)
def test_the_state_of_a_run_gives_its_batches_after_any_edit_of_the_future(
    declared: Declared, seed: int, data: st.DataObject
) -> None:
    run = declared.curriculum().sampler(seed)
    step = data.draw(st.integers(0, run.total_steps))
    edited = data.draw(edits(declared, step))
    skips = [skip for skip in declared.skips if skip[0] < step]
    try:
        curriculum = declared.curriculum(phases=edited, skips=skips)
        sampler = curriculum.sampler(state=saved(run, step))
    except StateMismatch:
        raise
    except ValueError:  # a later phase that the sources cannot meet
        assume(False)
        return

    assert sampler.seed == seed
    assert sampler.longest == run.longest
    for past in range(step):
        assert digest(sampler, past) == digest(run, past)
        assert located(sampler, past) == located(run, past)
    again = curriculum.plan(state=saved(run, step))
    assert (again.seed, again.longest) == (seed, run.longest)


def test_a_seed_that_is_not_the_run_s_is_refused() -> None:
    state = saved(make(SHORT).sampler(7), 60)

    assert make(SHORT, LONG).sampler(7, state).seed == 7
    for use in (make(SHORT, LONG).sampler, make(SHORT, LONG).plan):
        with pytest.raises(StateMismatch, match="seed is 8 instead of 7"):
            use(8, state)


def test_a_sampler_of_neither_a_seed_nor_a_state_is_refused() -> None:
    with pytest.raises(TypeError) as info:
        make(SHORT).sampler()

    assert str(info.value) == (
        "a sampler needs a seed or the state of a run, got neither; "
        "give seed=0 for a new run, or the state of a run that has begun"
    )


def test_a_sampler_says_what_its_sources_are_cut_for() -> None:
    state = saved(make(SHORT).sampler(7), 60)
    after = make(SHORT, LONG)

    assert repr(after.sampler(7)) == "Sampler(seed=7, total_steps=80, longest=257)"
    assert repr(after.sampler(state=state)) == (
        "Sampler(seed=7, total_steps=80, longest=65)"
    )


def test_a_check_of_a_sampler_made_without_the_state_names_the_remedy() -> None:
    state = saved(make(SHORT).sampler(7), 60)

    with pytest.raises(StateMismatch) as info:
        make(SHORT, LONG).sampler(7).check(state)

    assert info.value.differences == (
        (
            "longest is 257 instead of 65, so the sources are divided differently and "
            "every batch may change; a run that has begun keeps its own longest, so "
            "give its state to Curriculum.sampler and Curriculum.plan"
        ),
    )


def test_a_plan_says_what_a_phase_longer_than_longest_costs() -> None:
    state = saved(make(SHORT).sampler(7), 60)

    assert make(SHORT, LONG).plan(7).notes_on_longest == ()
    [note] = make(SHORT, LONG).plan(state=state).notes_on_longest
    assert note == (
        "phase 1 has sequences of 257 tokens, longer than longest=65, which is fixed "
        "at the first step of a run: a round of the phase is up to 3.9 % of a source "
        "(1.6 % with longest=257), and a change of length leaves the rest of a round "
        "unread; declare longest=257 at the start of a run that may get such a phase"
    )
    assert note in words(make(SHORT, LONG).plan(state=state))


def test_a_difference_says_that_a_new_phase_is_longer_than_longest() -> None:
    state = saved(make(SHORT).sampler(7), 60)
    before, after = (make(*now).plan(state=state) for now in ([SHORT], [SHORT, LONG]))

    found = before.diff(after)

    assert found.step == 60
    assert set(after.notes_on_longest) < set(found.changes)
    assert set(after.notes_on_longest).isdisjoint(after.diff(after).changes)


def test_a_difference_of_longest_alone_says_that_every_batch_changes() -> None:
    state = saved(make(SHORT).sampler(7), 60)
    run, new = make(SHORT, LONG).plan(state=state), make(SHORT, LONG).plan(7)

    found = run.diff(new)

    assert found.step == 0
    assert str(found) == (
        "every batch changes\n"
        "- longest is 257 instead of 65, so the sources are divided differently and "
        "every batch may change; a run that has begun keeps its own longest, so give "
        "its state to Curriculum.sampler and Curriculum.plan"
    )
