"""The future may be edited, the past may not."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, CurriculumError, Phase, StateMismatch
from roxxel_curriculum.state import state_before
from roxxel_curriculum.testing import PositionReader

from .helpers import Declared, curricula, declarations, digest, phases

SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
BLEND = {"self": 3, "code": 1}


def make(*declared: Phase, code: str = "code", **options: Any) -> Curriculum:
    readers = {code: PositionReader(4000, "code")}
    return Curriculum(PositionReader(20_000, "self"), declared, readers, **options)


def saved(curriculum: Curriculum, step: int, seed: int = 7) -> dict[str, Any]:
    return json.loads(json.dumps(curriculum.sampler(seed).state(step)))


def assert_same_past(before: Curriculum, after: Curriculum, step: int) -> None:
    state = saved(before, step)
    old, new = before.sampler(7), after.sampler(7, state)
    for past in range(step):
        assert digest(old, past) == digest(new, past)
    new.check(state)


FIRST = Phase(10, 4, 33, BLEND)
SECOND = Phase(20, 2, 65, BLEND)


@pytest.mark.parametrize("step", [0, 1, 10, 11, 15, 29, 30])
@pytest.mark.parametrize("steps", [30, 45, 1000])
def test_a_longer_last_phase_goes_on_from_any_earlier_step(
    step: int, steps: int
) -> None:
    before = make(FIRST, SECOND)
    after = make(FIRST, Phase(steps, 2, 65, BLEND))

    assert_same_past(before, after, step)
    old, new = before.sampler(7), after.sampler(7, saved(before, step))
    assert new.total_steps == 10 + steps
    for later in range(30):
        assert digest(old, later) == digest(new, later)


@pytest.mark.parametrize(
    "after",
    [
        make(FIRST, Phase(5, 2, 65, BLEND)),
        make(FIRST, Phase(5, 2, 65, BLEND), Phase(9, 1, 17)),
        make(FIRST, Phase(5, 2, 65, BLEND), Phase(15, 2, 65, BLEND)),
        make(FIRST, Phase(5, 2, 65, BLEND), Phase(15, 2, 65, {"code": 1, "self": 1})),
        make(FIRST, Phase(20, 2, 65, {"self": 1, "code": 1})),
        make(FIRST, Phase(200, 2, 65, {"self": 6, "code": 2})),
        make(FIRST, SECOND, Phase(3, 2, 129), longest=None),
        make(FIRST, SECOND, skips=[(15, 3)]),
        make(FIRST, SECOND, policies={"code": 3}),
    ],
)
def test_edits_from_the_next_step_on_are_accepted(after: Curriculum) -> None:
    assert_same_past(make(FIRST, SECOND), after, 15)


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        (
            make(Phase(11, 4, 33, BLEND), SECOND),
            "phase 0 has 11 steps instead of 10",
        ),
        (make(Phase(9, 4, 33, BLEND), SECOND), "phase 0 has 9 steps instead of 10"),
        (
            make(Phase(10, 5, 33, BLEND), SECOND),
            "batch_size of phase 0 is 5 instead of 4",
        ),
        (
            make(Phase(10, 4, 34, BLEND), SECOND),
            "seq_len of phase 0 is 34 instead",
        ),
        (
            make(Phase(10, 4, 33), SECOND),
            "the weights of phase 0 are self 1 instead of",
        ),
        (
            make(Phase(5, 4, 33, BLEND), Phase(5, 4, 33, BLEND), SECOND),
            "phase 0 has 5 steps instead of 10",
        ),
        (
            make(FIRST, Phase(4, 2, 65, BLEND)),
            "after 15 steps, .* phase 1 has 4 steps",
        ),
        (make(FIRST), "the run has 10 steps instead of 15"),
        (make(FIRST, SECOND, longest=66), "longest is 66 instead of 65"),
        (make(FIRST, SECOND, overlap=1), "overlap is 1 instead of 0"),
        (
            make(FIRST, SECOND, skips=[(14, 1)]),
            "before step 14 the data of 1 steps is skipped instead of 0",
        ),
        (
            make(
                Phase(10, 4, 33, {"self": 3, "kode": 1}),
                Phase(20, 2, 65, {"self": 3, "kode": 1}),
                code="kode",
            ),
            "source 'code' is gone",
        ),
    ],
)
def test_edits_before_the_step_are_refused_with_the_difference(
    after: Curriculum, difference: str
) -> None:
    with pytest.raises(StateMismatch, match=difference):
        after.sampler(7, saved(make(FIRST, SECOND), 15))


def test_another_seed_or_other_data_is_refused() -> None:
    before = make(FIRST, SECOND)
    state = saved(before, 15)
    other = Curriculum(
        PositionReader(20_000, "other"), [FIRST, SECOND], {"code": PositionReader(4000)}
    )

    with pytest.raises(StateMismatch, match="seed is 8 instead of 7"):
        before.sampler(8, state)
    with pytest.raises(StateMismatch, match="'self' holds other data") as info:
        other.sampler(7, state)
    assert len(info.value.differences) == 2


def test_a_phase_reweighted_twice_in_place_keeps_both_pasts() -> None:
    first = make(Phase(40, 2, 65, BLEND))
    second = make(Phase(40, 2, 65, {"self": 1, "code": 1}))
    third = make(Phase(60, 2, 65, {"self": 1, "code": 0}))
    at_10 = saved(first, 10)
    resumed = second.sampler(7, at_10)
    at_25 = json.loads(json.dumps(resumed.state(25)))

    again = third.sampler(7, at_25)

    assert [(p.start, p.steps) for p in again.phases] == [(0, 10), (10, 15), (25, 35)]
    for step in range(25):
        assert digest(again, step) == digest(resumed, step)
    assert [again.phase(step) for step in (9, 10, 25, 59)] == [0, 0, 0, 0]
    same = second.sampler(7, at_25)
    for step in range(40):
        assert digest(same, step) == digest(resumed, step)
    with pytest.raises(StateMismatch):
        second.sampler(7).check(at_25)


def test_a_run_keeps_its_longest_when_a_longer_phase_is_added() -> None:
    before = make(FIRST, SECOND)
    after = make(FIRST, SECOND, Phase(5, 1, 257))

    assert after.longest == 257
    assert after.sampler(7, saved(before, 30)).state(30)["longest"] == 65
    with pytest.raises(StateMismatch, match="longest is 257 instead of 65"):
        after.sampler(7).check(saved(before, 30))


def test_a_phase_that_fits_only_the_longest_of_a_run_needs_it_declared() -> None:
    whole = Phase(585, 1, 33)  # every window of the primary, in spans for 33 tokens

    def of(*phases: Phase, **options: Any) -> Curriculum:
        readers = {"code": PositionReader(40_000, "code")} if phases[1:] else {}
        return Curriculum(
            PositionReader(19_305), phases, readers, max_epochs=1, **options
        )

    state = saved(of(whole), 585)
    longer = Phase(3, 1, 400, {"code": 1})

    with pytest.raises(CurriculumError, match=r"585 steps.* 576 steps.* longest=33"):
        of(whole, longer)
    resumed = of(whole, longer, longest=33).sampler(7, state)
    assert resumed.batch(587).shape == (1, 400)


@pytest.mark.parametrize("steps", [{"steps": 8}, {"steps": 10}, {"epochs": 0.01}])
def test_a_trained_part_that_no_phase_covers_keeps_its_weights(
    steps: dict[str, Any],
) -> None:
    before = make(Phase(40, 2, 65, BLEND))
    other = Phase(**steps, batch_size=2, seq_len=65, weights={"self": 1, "code": 1})
    after = make(other, Phase(40, 2, 65, BLEND))

    with pytest.raises(StateMismatch, match=r"weights of phase 0 are self 0\.5"):
        after.sampler(7, saved(before, 10))


def test_a_reweighted_phase_that_does_not_match_is_compared_as_one() -> None:
    first = make(FIRST, SECOND, Phase(9, 1, 17))
    second = make(Phase(10, 4, 33), SECOND, Phase(9, 1, 17))
    at_35 = json.loads(json.dumps(second.sampler(7, saved(first, 5)).state(35)))
    after = make(Phase(10, 5, 33), Phase(20, 3, 65, BLEND), Phase(9, 1, 17))

    with pytest.raises(StateMismatch) as info:
        after.sampler(7, at_35)

    assert info.value.differences == (
        "batch_size of phase 0 is 5 instead of 4",
        "the weights of phase 0 are self 1 instead of self 0.75, code 0.25",
        "batch_size of phase 1 is 3 instead of 2",
    )


def test_two_policies_that_changed_are_each_named_if_the_past_needs_them() -> None:
    def of(code: Any, math: Any) -> Curriculum:
        return Curriculum(
            PositionReader(20_000),
            [Phase(100, 4, 33, {"code": 1, "math": 1}), Phase(9, 1, 9)],
            {"code": PositionReader(4000, "c"), "math": PositionReader(4000, "m")},
            policies={"code": code, "math": math},
        )

    state = saved(of("repeat", "drop"), 109)

    with pytest.raises(StateMismatch) as info:
        of("drop", "repeat").sampler(7, state)
    assert [text[:30] for text in info.value.differences[:2]] == [
        "the policy of source 'code' is",
        "the policy of source 'math' is",
    ]


def test_a_state_beyond_the_last_step_is_refused_by_check() -> None:
    longer = make(FIRST, SECOND)
    shorter = make(FIRST, longest=65)

    with pytest.raises(StateMismatch, match="the run has 10 steps instead of 15"):
        shorter.sampler(7).check(saved(longer, 15))


def test_an_error_of_a_changed_past_can_be_pickled() -> None:
    with pytest.raises(StateMismatch) as info:
        make(FIRST).sampler(8, saved(make(FIRST), 3))

    copy = pickle.loads(pickle.dumps(info.value))  # noqa: S301 - our own bytes

    assert isinstance(copy, StateMismatch)
    assert str(copy) == str(info.value)
    assert copy.differences == ("seed is 8 instead of 7",)


def test_the_policy_of_a_source_that_ran_out_is_past() -> None:
    phase = Phase(80, 4, 33, {"self": 1, "code": 1})
    before = make(phase)
    ran_out = before.plan().phases[0].sources[0].exhausted_step
    assert ran_out is not None
    after = make(phase, policies={"code": "repeat"})

    after.sampler(7, saved(before, ran_out))
    with pytest.raises(StateMismatch, match="policy of source 'code' is 'repeat'"):
        after.sampler(7, saved(before, ran_out + 2))


@SLOW
@given(declared=declarations(), data=st.data())
def test_what_follows_a_step_never_changes_what_came_before(
    declared: Declared, data: st.DataObject
) -> None:
    curriculum = declared.curriculum()
    step = data.draw(st.integers(0, curriculum.total_steps))
    kept: list[Phase] = []
    done = 0
    for phase in declared.phases:
        steps = phase.steps or 0
        if done + steps >= step:
            cut = step - done
            if cut:
                kept.append(Phase(cut, phase.batch_size, phase.seq_len, phase.weights))
            break
        kept.append(phase)
        done += steps
    names = curriculum.source_names
    later = data.draw(st.lists(phases(names), min_size=1, max_size=3))
    skips = [skip for skip in declared.skips if skip[0] < step]
    try:
        edited = declared.curriculum(phases=kept + later, skips=skips)
        sampler = edited.sampler(7, saved(curriculum, step))
    except StateMismatch:
        raise
    except ValueError:
        assume(False)
        return
    old = curriculum.sampler(7)
    for past in range(step):
        assert digest(sampler, past) == digest(old, past)


@SLOW
@given(curriculum=curricula(), data=st.data())
def test_a_state_is_accepted_by_the_run_that_wrote_it(
    curriculum: Curriculum, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, curriculum.total_steps))
    state = saved(curriculum, step)

    assert curriculum.sampler(7, state).state(step) == state
    curriculum.sampler(7).check(state)


def test_something_else_than_a_state_is_refused() -> None:
    curriculum = make(FIRST)

    cases: list[Any] = [{}, {"step": 3}, [], None]
    for wrong in cases:
        with pytest.raises(StateMismatch, match=r"which Sampler\.state always writes"):
            curriculum.sampler(7).check(wrong)
    with pytest.raises(StateMismatch, match=r'holds the state as \["data"\]'):
        curriculum.sampler(7).check({"data": saved(curriculum, 3)})
    with pytest.raises(StateMismatch, match="arithmetic was 99 and is now 1"):
        curriculum.sampler(7, {**saved(curriculum, 3), "arithmetic": 99})


def test_every_changed_phase_of_the_past_is_named() -> None:
    before = make(FIRST, SECOND, Phase(10, 1, 17, BLEND), Phase(10, 1, 9))
    after = make(
        Phase(10, 5, 33, BLEND), Phase(20, 2, 64), Phase(10, 1, 17), Phase(9, 2, 9)
    )

    with pytest.raises(StateMismatch) as info:
        after.sampler(7, saved(before, 45))

    changed = "self 1 instead of self 0.75, code 0.25"
    assert info.value.differences == (
        "batch_size of phase 0 is 5 instead of 4",
        "seq_len of phase 1 is 64 instead of 65",
        f"the weights of phase 1 are {changed}",
        f"the weights of phase 2 are {changed}",
        "batch_size of phase 3 is 2 instead of 1",
    )
    assert "; 2 more differences; resume with" in str(info.value)
    assert len(str(info.value)) < 500


def test_changed_weights_of_many_sources_are_one_short_sentence() -> None:
    def of(changed: int) -> Curriculum:
        names = [f"a_source_of_some_name_{number:02d}" for number in range(40)]
        weights = dict.fromkeys(names, 1) | {"self": 1, names[7]: changed}
        readers = {name: PositionReader(20_000, name) for name in names}
        phases = [Phase(10, 4, 33, weights), Phase(9, 4, 33)]
        return Curriculum(PositionReader(20_000), phases, readers)

    first, second = of(1), of(9)
    with pytest.raises(StateMismatch) as resumed:
        second.sampler(7, saved(first, 15))
    with pytest.raises(StateMismatch) as checked:
        second.sampler(7).check(saved(first, 15))

    for info in (resumed, checked):
        message = str(info.value)
        assert "'a_source_of_some_name_07' has 9 of 49 instead of 1 of 41" in message
        assert "and 40 more sources differ" in message
        assert len(message) < 300


def test_a_policy_that_would_have_stopped_the_past_is_refused() -> None:
    phases = [Phase(40, 4, 33, BLEND), Phase(80, 4, 33, BLEND), Phase(9, 1, 17)]
    before = make(*phases, policies={"code": "repeat"})
    after = make(*phases, policies={"code": "stop"})
    assert after.total_steps < before.total_steps

    after.sampler(7, saved(before, after.total_steps))
    for step in (after.total_steps + 1, 125, 129):
        with pytest.raises(StateMismatch, match="step"):
            after.sampler(7, saved(before, step))


def test_a_policy_may_change_before_the_first_step() -> None:
    before, after = make(FIRST), make(FIRST, policies={"code": "repeat"})

    assert after.sampler(7, saved(before, 0)).total_steps == 10
    after.sampler(7).check(saved(before, 0))


def test_a_source_may_be_added_from_the_step_on_and_an_unread_one_changed() -> None:
    primary, code = PositionReader(20_000, "self"), PositionReader(4000, "code")
    later = Phase(9, 2, 33, {"self": 1, "math": 1})
    before = make(FIRST, SECOND)
    added = Curriculum(
        primary, [FIRST, SECOND, later], {"code": code, "math": PositionReader(3000)}
    )
    other = Curriculum(
        primary, [FIRST, SECOND, later], {"code": code, "math": PositionReader(5000)}
    )

    assert_same_past(before, added, 15)
    assert_same_past(added, other, 30)
    assert_same_past(added, before, 30)
    with pytest.raises(
        StateMismatch,
        match="'math' holds other data: 5,000 tokens",
    ):
        other.sampler(7, saved(added, 31))


def test_a_skip_does_not_shorten_a_phase_of_epochs_that_is_edited() -> None:
    def of(share: int, skips: list[tuple[int, int]]) -> Curriculum:
        weights = {"self": share, "code": 1}
        return Curriculum(
            PositionReader(4000),
            [Phase(epochs=1, batch_size=4, seq_len=10, weights=weights)],
            {"code": PositionReader(40_000)},
            skips=skips,
        )

    skips = [(10, 20), (15, 3)]
    plain = of(2, []).sampler(1, of(1, []).sampler(1).state(50))
    skipped = of(2, skips).sampler(1, of(1, skips).sampler(1).state(50))

    assert of(1, skips).total_steps == of(1, []).total_steps
    assert skipped.total_steps == plain.total_steps


@pytest.mark.parametrize("step", range(31))
def test_a_state_tells_what_the_state_was_before(step: int) -> None:
    edited = make(FIRST, SECOND, skips=[(15, 3)])
    withdrawn = make(FIRST, SECOND, without={"code": [1]})
    for curriculum in (edited, withdrawn):
        sampler = curriculum.sampler(7, fields=("tokens", "loss_mask"))
        assert state_before(sampler.state(30), step) == sampler.state(step)
