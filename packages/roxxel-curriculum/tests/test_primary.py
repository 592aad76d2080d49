"""The name of the primary source: one in every place, without effect on any batch."""

from __future__ import annotations

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
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
# Names before, between and after the names of the other sources.
PRIMARIES = st.sampled_from(("aaa", "library", "zzz"))
WEB, CODE = PositionReader(10_000, "web"), PositionReader(5_000, "code")


def declared_with(primary: str = "web", **weights: Any) -> Curriculum:
    """Return a curriculum of two sources and two phases."""
    weights = weights or {primary: 3, "code": 1}
    phases = [Phase(6, 4, 65, weights), Phase(4, 4, 33, weights)]
    return Curriculum(WEB, phases, {"code": CODE}, primary=primary)


def as_named(values: dict[str, Any], primary: str) -> dict[str, Any]:
    return {primary if name == "self" else name: x for name, x in values.items()}


def named(declared: Declared, primary: str) -> Curriculum:
    """Return a declared curriculum whose primary has a name."""
    phases = [
        phase
        if phase.weights is None
        else replace(phase, weights=as_named({**phase.weights}, primary))
        for phase in declared.phases
    ]
    policies = as_named(declared.policies, primary)
    return declared.curriculum(phases=phases, policies=policies, primary=primary)


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
    for numbers in ("delivered_tokens", "planned_tokens", "epochs"):
        of_plain = getattr(plain, numbers)(total)
        assert getattr(named, numbers)(total) == as_named(of_plain, primary)
    places = named.where(primary, 0, 200)
    assert list(places) == list(plain.where("self", 0, 200))
    assert named.next_epoch(primary, 0) == plain.next_epoch("self", 0)


@LAW
@given(
    declared=declarations(),
    primary=PRIMARIES,
    seed=st.integers(0, 2**64),
    data=st.data(),
)
def test_a_name_changes_no_batch(
    declared: Declared, primary: str, seed: int, data: st.DataObject
) -> None:
    curriculum, plain = named(declared, primary), declared.curriculum().sampler(seed)
    sampler = curriculum.sampler(seed)
    check_same(sampler, plain, primary)

    state = sampler.state(data.draw(st.integers(0, plain.total_steps)))
    assert state["sources"][0]["name"] == primary
    check_same(curriculum.sampler(state=state), plain, primary)
    readers = as_named({**declared.readers}, primary)
    for step in (state["step"], plain.total_steps):
        past = recorded_sampler(sampler.state(step), readers) if step else None
        assert past is None or [digest(past, each) for each in range(step)] == [
            digest(plain, each) for each in range(step)
        ]


def test_the_past_without_the_primary_keeps_the_order_of_the_others() -> None:
    phases = [Phase(6, 4, 65, {"code": 1, "docs": 1}), Phase(6, 4, 65, {"web": 1})]
    others = {"code": CODE, "docs": PositionReader(6_000, "docs")}
    sampler = Curriculum(WEB, phases, others, primary="web").sampler(3)

    past = recorded_sampler(sampler.state(6), others)
    again = recorded_sampler(past.state(6), others)

    for step in range(6):
        tokens = sampler.batch(step).tolist()
        assert past.batch(step).tolist() == again.batch(step).tolist() == tokens


def test_a_run_keeps_the_name_of_its_primary() -> None:
    state = declared_with("self").sampler(1).state(3)

    with pytest.raises(StateMismatch, match="primary is named 'web' instead of 'self'"):
        declared_with("web").sampler(state=state)


def test_another_source_does_not_become_the_primary_of_a_run() -> None:
    state = Curriculum(CODE, [Phase(6, 4, 65, {"web": 1, "self": 0})], {"web": WEB})
    state = state.sampler(1).state(3)

    with pytest.raises(
        StateMismatch, match="'web' is now the primary, which changes its order"
    ):
        Curriculum(WEB, [Phase(6, 4, 65)], primary="web").sampler(state=state)


def test_every_argument_takes_the_name() -> None:
    curriculum = Curriculum(
        WEB,
        [Phase(6, 4, 65, {"web": 3, "code": 1})],
        {"code": CODE},
        policies={"web": "stop"},
        without={"web": [0, "tokens:[500,509)"]},
        primary="web",
    )
    sampler = curriculum.sampler(1, fields=("tokens", "loss_mask"))

    assert curriculum.primary == "web"
    assert curriculum.plan().sources[0].policy == "stop"
    assert [each.source for each in sampler.withdrawals] == ["web"]
    assert sampler.masked_steps("web", 0) == (range(6),)
    assert sampler.masked_ranges("web", 0, 505) == {(500, 505): (range(6),)}
    assert sampler.masked_ranges("web", 509, 600) == {}
    state = sampler.state(6)
    assert state["without"][0]["source"] == "web"
    sampler.check(state)
    past = recorded_sampler(state, {"web": WEB, "code": CODE})
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


@LAW
@given(declared=declarations(), primary=PRIMARIES)
def test_another_name_of_the_primary_changes_no_batch(
    declared: Declared, primary: str
) -> None:
    plain, renamed = declared.curriculum().plan(), named(declared, primary).plan()

    change = f"the primary is named {primary!r} instead of 'self'"
    found = plain.diff(renamed)
    assert (found.step, found.causes) == (None, ())
    assert [each[: len(change)] for each in found.changes] == [change]
    assert renamed.diff(plain).step is None


def test_another_primary_of_one_name_changes_the_order() -> None:
    phases = [Phase(6, 4, 65, {"web": 1, "self": 0})]
    of_web = Curriculum(WEB, [Phase(6, 4, 65)], primary="web")
    of_code = Curriculum(CODE, phases, {"web": WEB})
    first, second = (each.sampler(1).batch(0) for each in (of_web, of_code))

    assert (first != second).any()
    for one, other, word in ((of_web, of_code, "no longer"), (of_code, of_web, "now")):
        diff = one.plan().diff(other.plan())
        assert diff.step == 0
        assert f"source 'web' is {word} the primary" in str(diff)


def test_errors_show_the_name() -> None:
    for other in ("docs", "self"):
        with pytest.raises(
            CurriculumError,
            match=f"unknown source '{other}'; the sources are 'web', 'code'",
        ):
            declared_with("web", **{other: 1})
    with pytest.raises(CurriculumError, match="read source 'web' for"):
        Curriculum(WEB, [Phase(999, 9, 99)], max_epochs=1, primary="web")
    for other in ("docs", "self"):
        with pytest.raises(
            KeyError, match=f"'{other}' is not a source; there are 'web', 'code'"
        ):
            declared_with().sampler(1).where(other, 0, 1)
    changed = Curriculum(
        PositionReader(9_999, "other"), [Phase(6, 4, 65)], primary="web"
    )
    state = Curriculum(WEB, [Phase(6, 4, 65)], primary="web").sampler(1).state(3)
    with pytest.raises(
        StateMismatch, match="'web' holds other data: 9,999 tokens instead of 10,000"
    ):
        changed.sampler(state=state)


@pytest.mark.parametrize(
    ("primary", "error", "message"),
    [
        (
            "code",
            CurriculumError,
            "primary='code' is also the name of a source in mix_",
        ),
        ("", CurriculumError, "primary must be a non-empty string, got ''"),
        (3, TypeError, "primary must be a non-empty string, got 3"),
        (None, TypeError, "primary must be a non-empty string, got None"),
    ],
)
def test_a_wrong_name_is_an_error(
    primary: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        declared_with(primary, code=1)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"phases": [Phase(1, 1, 9, {"self": 1, "web": 1})]}, "the weights of phase 0"),
        ({"policies": {"self": "stop"}}, "policies"),
        ({"without": {"self": [1]}}, "the withdrawn documents"),
    ],
)
def test_another_name_of_the_primary_is_an_error(
    arguments: dict[str, Any], what: str
) -> None:
    phases = arguments.pop("phases", [Phase(1, 1, 9)])
    with pytest.raises(CurriculumError, match=f"{what} name unknown source 'self'; "):
        Curriculum(WEB, phases, primary="web", **arguments)


def test_a_schedule_names_the_primary() -> None:
    phases = (Phase(5, 2, 9, {"web": 3, "code": 1}),)

    schedule = Schedule(phases, primary="web")

    assert schedule.curriculum(WEB, {"code": CODE}).source_names == ("web", "code")
    with pytest.raises(TypeError, match="primary must be a non-empty string, got 3"):
        Schedule(phases, primary=3)  # pyright: ignore[reportArgumentType] - on purpose
