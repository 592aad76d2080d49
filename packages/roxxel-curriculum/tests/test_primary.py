"""The name of the primary source: shown and accepted, without effect on any batch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import (
    Curriculum,
    CurriculumError,
    Phase,
    Schedule,
    StateMismatch,
    recorded_sampler,
)
from roxxel_curriculum.testing import PositionReader

from .helpers import declarations, digest

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler

    from .helpers import Declared

LAW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Names before, between and after the names of the other sources.
PRIMARIES = st.sampled_from(("aaa", "library", "zzz"))
WEB, CODE = PositionReader(10_000, "web"), PositionReader(5_000, "code")
BOTH = {"self": 3, "code": 1}


def declared_with(primary: str = "web", **weights: Any) -> Curriculum:
    """Return a curriculum of two sources and two phases."""
    weights = weights or BOTH
    phases = [Phase(6, 4, 65, weights), Phase(4, 4, 33, weights)]
    return Curriculum(WEB, phases, {"code": CODE}, primary=primary)


def as_named(values: dict[str, Any], primary: str) -> dict[str, Any]:
    return {primary if name == "self" else name: x for name, x in values.items()}


def check_same(named: Sampler, plain: Sampler, primary: str) -> None:
    """Check that two samplers differ in the name of the primary alone."""
    total = plain.total_steps
    assert named.total_steps == total
    assert named.primary == primary
    assert named.source_names == (primary, *plain.source_names[1:])
    for step in range(total):
        assert digest(named, step) == digest(plain, step)
        at = plain.locate(step, 0)
        if at.source == "self":
            at = replace(at, source=primary)
        assert named.locate(step, 0) == at
        assert json.dumps(named.state(step)) == json.dumps(plain.state(step))
    for numbers in ("delivered_tokens", "planned_tokens", "epochs"):
        of_plain = getattr(plain, numbers)(total)
        assert getattr(named, numbers)(total) == as_named(of_plain, primary)
    for name in ("self", primary):
        places = named.where(name, 0, 200)
        assert list(places) == list(plain.where("self", 0, 200))
        assert named.next_epoch(name, 0) == plain.next_epoch("self", 0)


@LAW
@given(declared=declarations(), primary=PRIMARIES, seed=st.integers(0, 2**64))
def test_a_name_changes_no_batch_and_no_state(
    declared: Declared, primary: str, seed: int
) -> None:
    named = declared.curriculum(primary=primary)
    plain = declared.curriculum()

    check_same(named.sampler(seed), plain.sampler(seed), primary)
    assert plain.plan(seed).diff(named.plan(seed)).changes == ()
    assert named.plan(seed).diff(plain.plan(seed)).changes == ()


@LAW
@given(declared=declarations(), before=PRIMARIES, after=PRIMARIES, data=st.data())
def test_a_run_may_change_the_name_when_it_resumes(
    declared: Declared, before: str, after: str, data: st.DataObject
) -> None:
    plain = declared.curriculum().sampler(3)
    step = data.draw(st.integers(0, plain.total_steps))
    last = {**(declared.phases[-1].weights or {}), "self": 5}
    edited = [*declared.phases[:-1], replace(declared.phases[-1], weights=last)]
    state = plain.state(step)

    began = declared.curriculum(primary=before).sampler(3)
    assert began.state(step) == state
    if step <= plain.phases[-1].start or step == plain.total_steps:
        edited = declared.phases
    expected = declared.curriculum(phases=edited).sampler(state=state)
    for name in (after, "self"):
        resumed = declared.curriculum(phases=edited, primary=name)
        check_same(resumed.sampler(state=state), expected, name)
    named = declared.curriculum(phases=edited, primary=after)
    later = named.sampler(state=state).state(expected.total_steps)
    if expected.total_steps:
        past = recorded_sampler(later, declared.readers, primary=after)
        check_same(past, recorded_sampler(later, declared.readers), after)


def test_every_argument_accepts_both_names() -> None:
    for name in ("self", "web"):
        curriculum = Curriculum(
            WEB,
            [Phase(6, 4, 65, {name: 3, "code": 1})],
            {"code": CODE},
            policies={name: "stop"},
            without={name: [0, "tokens:[500,509)"]},
            primary="web",
        )
        sampler = curriculum.sampler(1, fields=("tokens", "loss_mask"))

        assert curriculum.primary == "web"
        assert curriculum.plan().sources[0].policy == "stop"
        assert [each.source for each in sampler.withdrawals] == ["web"]
        assert sampler.masked_steps(name, 0) == (range(6),)
        assert sampler.masked_ranges(name, 0, 505) == {(500, 505): (range(6),)}
        state = sampler.state(6)
        assert state["without"][0]["source"] == "self"
        sampler.check(state)
        past = recorded_sampler(state, {name: WEB, "code": CODE}, primary="web")
        assert past.withdrawals == sampler.withdrawals


def test_a_phase_without_weights_reads_the_primary() -> None:
    curriculum = Curriculum(
        WEB, [Phase(epochs=0.5, batch_size=4, seq_len=65)], primary="web"
    )

    assert curriculum.phases[0].weights == {"web": 1}


def test_plans_show_the_name() -> None:
    curriculum = declared_with()

    plan = str(curriculum.plan())
    assert "web     0.75" in plan
    assert "self" not in plan
    assert repr(curriculum).endswith("sources web, code)")


def test_differences_of_plans_use_the_later_name() -> None:
    before, after = declared_with("self"), declared_with("web", web=1, code=1)

    diff = before.plan().diff(after.plan())
    assert diff.step == 0
    assert "the weights of phase 0 are web 0.5, code 0.5 instead of web 0.75, " in str(
        diff
    )


def test_a_name_that_another_source_had_does_not_hide_its_removal() -> None:
    phases = [Phase(6, 4, 65, {"self": 3, "web": 1})]
    before = Curriculum(CODE, phases, {"web": WEB})
    after = Curriculum(CODE, [Phase(6, 4, 65, {"web": 1})], primary="web")

    assert "source 'web' is gone" in before.plan().diff(after.plan()).changes

    state = before.sampler(1).state(3)
    with pytest.raises(
        StateMismatch,
        match="the run has another source named 'web'; give the primary another name",
    ):
        after.sampler(state=state)


def test_errors_show_the_name() -> None:
    with pytest.raises(
        CurriculumError, match="unknown source 'docs'; the sources are 'web', 'code'"
    ):
        declared_with(docs=1)
    with pytest.raises(CurriculumError, match="read source 'web' for"):
        Curriculum(WEB, [Phase(999, 9, 99)], max_epochs=1, primary="web")
    with pytest.raises(
        KeyError, match="'docs' is not a source; there are 'web', 'code'"
    ):
        declared_with().sampler(1).where("docs", 0, 1)
    other = Curriculum(PositionReader(9_999, "other"), [Phase(6, 4, 65)], primary="web")
    state = Curriculum(WEB, [Phase(6, 4, 65)]).sampler(1).state(3)
    with pytest.raises(
        StateMismatch, match="the number of tokens of source 'web' was 10000"
    ):
        other.sampler(state=state)


@pytest.mark.parametrize(
    ("primary", "error", "message"),
    [
        (
            "code",
            CurriculumError,
            "primary='code' is also the name of a source in mix_",
        ),
        ("", TypeError, "primary must be the name of a source, got ''"),
        (3, TypeError, "primary must be the name of a source, got 3"),
        (None, TypeError, "primary must be the name of a source, got None"),
    ],
)
def test_a_wrong_name_is_an_error(
    primary: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        declared_with(primary)
    if primary != "code":
        with pytest.raises(error, match=message):
            recorded_sampler(
                declared_with().sampler(1).state(3),
                {"self": WEB, "code": CODE},
                primary=primary,
            )


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"phases": [Phase(1, 1, 9, {"self": 1, "web": 1})]}, "the weights of phase 0"),
        ({"policies": {"self": "stop", "web": "stop"}}, "policies"),
        ({"without": {"self": [1], "web": [2]}}, "the withdrawn documents"),
    ],
)
def test_a_primary_that_is_named_twice_is_an_error(
    arguments: dict[str, Any], what: str
) -> None:
    phases = arguments.pop("phases", [Phase(1, 1, 9)])
    with pytest.raises(
        CurriculumError,
        match=f"{what} name the primary source twice, as 'self' and as 'web'; keep one",
    ):
        Curriculum(WEB, phases, primary="web", **arguments)


def test_a_schedule_names_the_primary() -> None:
    phases = (Phase(5, 2, 9, {"web": 3, "code": 1}),)

    schedule = Schedule(phases, primary="web")

    assert schedule.curriculum(WEB, {"code": CODE}).source_names == ("web", "code")
    with pytest.raises(TypeError, match="primary must be a non-empty string, got 3"):
        Schedule(phases, primary=3)  # pyright: ignore[reportArgumentType] - on purpose
