"""A state that was changed in one field is refused, and gives no other batch."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase, StateMismatch, recorded_sampler
from roxxel_curriculum.testing import PositionReader

from .helpers import Declared, declarations

if TYPE_CHECKING:
    from collections.abc import Iterator

THOROUGH = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Path = tuple[Any, ...]

HOSTILE: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 2**31, 2**63, -(2**64), 10**400),
    *(0.0, 1.5, float("nan"), float("inf"), "", "self", "0", "\0", "drop"),
    *([], [[]], [1, 1], [[0, 1]], {}, {"self": 1}, {"epochs": 1, "then": "stop"}),
    *({1: 2}, b"bytes", {1, 2}, object(), range(3)),
]


def parts(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield every part of a state, with its path."""
    items: dict[Any, Any] = {}
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
    elif isinstance(value, list):
        items = dict(enumerate(cast("list[Any]", value)))
    for key, item in items.items():
        yield (*path, key), item
        yield from parts(item, (*path, key))


def changed(data: st.DataObject, state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a state with one part replaced, removed, added or doubled."""
    path, old = data.draw(st.sampled_from(list(parts(state))))
    copied = copy.deepcopy(state)
    inside: Any = copied
    for key in path[:-1]:
        inside = inside[key]
    how = data.draw(st.sampled_from(["replace", "nearby", "remove", "double"]))
    if how == "remove":
        del inside[path[-1]]
    elif how == "double" and isinstance(inside, list):
        cast("list[Any]", inside).insert(path[-1], old)
    elif how == "nearby" and isinstance(old, int):
        inside[path[-1]] = old + data.draw(st.integers(-3, 3))
    else:
        inside[path[-1]] = data.draw(st.sampled_from(HOSTILE))
    assume(repr(copied) != repr(state))
    return copied


def uses(curriculum: Curriculum, state: Any) -> list[Any]:
    return [
        lambda: curriculum.sampler(7, state),
        lambda: curriculum.sampler(state=state),
        lambda: curriculum.plan(7, state),
        lambda: curriculum.sampler(7).check(state),
    ]


@THOROUGH
@given(declared=declarations(), data=st.data())
def test_a_state_that_was_changed_in_one_field_is_refused(
    declared: Declared, data: st.DataObject
) -> None:
    curriculum = declared.curriculum()
    sampler = curriculum.sampler(7)
    state = json.loads(
        json.dumps(sampler.state(data.draw(st.integers(0, sampler.total_steps))))
    )
    hostile = changed(data, state)

    for use in uses(curriculum, hostile):
        with pytest.raises(StateMismatch):
            use()


def test_a_state_that_was_changed_in_any_part_says_so() -> None:
    curriculum = Curriculum(
        PositionReader(20_000),
        [Phase(10, 4, 33)],
        skips=[(2, 1)],
        without={"self": [0]},
    )
    state = curriculum.sampler(7, fields=["tokens", "loss_mask"]).state(5)

    for name in state.keys() - {"arithmetic"}:
        with pytest.raises(StateMismatch) as info:
            recorded_sampler(state | {name: []}, None)

        assert info.value.differences == (
            "it was changed after Sampler.state wrote it: the digest does not match",
        )


def test_what_a_state_has_withdrawn_cannot_be_taken_back() -> None:
    withdrawn = {"self": ["tokens:[0,100)"]}
    curriculum = Curriculum(
        PositionReader(20_000), [Phase(10, 4, 33)], without=withdrawn
    )
    fields = ("tokens", "loss_mask")
    state = curriculum.sampler(7, fields=fields).state(5)
    [one] = state["without"]

    for others in ([], [one, one], [{**one, "step": 3}]):
        with pytest.raises(StateMismatch, match="the digest does not match"):
            curriculum.sampler(7, state | {"without": others}, fields=fields)


@pytest.mark.parametrize("state", [{}, [], 3, "state", b"", {"step": object()}])
def test_what_is_not_a_state_is_refused(state: Any) -> None:
    curriculum = Curriculum(PositionReader(20_000), [Phase(10, 4, 33)])

    for use in uses(curriculum, state):
        with pytest.raises(StateMismatch, match=r"Sampler\.state \w+ writes"):
            use()
