"""Runs of every kind, edited in place at any step, keep their past."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase, Policy, Sampler
from roxxel_curriculum.testing import PositionReader

from .helpers import NAMES, coverage, delivered

SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
POLICIES: list[Any] = ["drop", "repeat", 2, "stop", Policy(2, "stop")]
MOST_EPOCHS: dict[Any, int | None] = {
    "drop": 1,
    "repeat": None,
    "stop": 1,
    2: 2,
    3: 3,
    Policy(2, "stop"): 2,
}
LENGTHS: list[dict[str, Any]] = [
    {"steps": 7},
    {"steps": 30},
    {"epochs": 0.3},
    {"epochs": 1},
    {"epochs": 1.7},
    {"tokens": 2000},
]


@st.composite
def any_phase(draw: st.DrawFn, names: tuple[str, ...]) -> Phase:
    weights = {name: draw(st.sampled_from((0, 1, 2, 0.25))) for name in names}
    weights["self"] = weights["self"] or 0.5
    return Phase(
        batch_size=draw(st.integers(1, 9)),
        seq_len=draw(st.integers(2, 40)),
        weights=draw(st.sampled_from((weights, None))),
        **draw(st.sampled_from(LENGTHS)),
    )


class Declared:
    """A declaration that can be made again with other phases."""

    def __init__(self, data: st.DataObject) -> None:
        draw = data.draw
        self.names = NAMES[: draw(st.integers(1, 4))]
        self.readers = {
            name: PositionReader(draw(st.integers(100, 3000)), name)
            for name in self.names
        }
        self.phases = draw(st.lists(any_phase(self.names), min_size=1, max_size=4))
        self.policies = {
            name: draw(st.sampled_from(POLICIES)) for name in self.names[1:]
        }
        self.policies["self"] = draw(st.sampled_from(["repeat", 3, "stop"]))
        self.overlap = draw(st.sampled_from((0, 1)))
        self.longest = draw(st.sampled_from((None, 20, 60)))
        self.skips: list[tuple[int, int]] = []

    def curriculum(self, phases: list[Phase] | None = None) -> Curriculum:
        try:
            made = Curriculum(
                self.readers["self"],
                phases or self.phases,
                {name: self.readers[name] for name in self.names[1:]},
                policies=self.policies,
                overlap=self.overlap,
                longest=self.longest,
                skips=self.skips,
            )
            if phases is None:
                made.sampler(0)  # the sources may be too small, or no step may be left
        except ValueError:
            assume(False)
            raise
        return made


def windows(sampler: Sampler, steps: range) -> list[tuple[bytes, bytes]]:
    found = [sampler.windows(step) for step in steps]
    return [(part.source.tobytes(), part.start.tobytes()) for part in found]


def saved(sampler: Sampler, step: int) -> dict[str, Any]:
    return json.loads(json.dumps(sampler.state(step)))


@SLOW
@given(data=st.data())
def test_a_phase_edited_in_place_keeps_its_past_again_and_again(
    data: st.DataObject,
) -> None:
    declared = Declared(data)
    plain = declared.curriculum()
    total = plain.total_steps
    declared.skips = data.draw(
        st.lists(st.tuples(st.integers(0, total - 1), st.integers(1, 5)), max_size=2)
    )
    first = declared.curriculum()
    before = first.sampler(5)
    step = data.draw(st.integers(1, before.total_steps))
    number = before.phase(step - 1)
    piece = before.phases[number]
    weights: Any = {
        name: data.draw(st.sampled_from((0, 1, 5))) for name in declared.names
    }
    weights["self"] = weights["self"] or 1
    longer = step - piece.start + data.draw(st.integers(1, 20))
    if piece.stop == step or data.draw(st.booleans()):
        weights = declared.phases[number].weights
    edited = [
        *declared.phases[:number],
        Phase(longer, piece.batch_size, piece.seq_len, weights),
        *data.draw(st.lists(any_phase(declared.names), max_size=2)),
    ]
    declared.skips = [skip for skip in declared.skips if skip[0] < step]
    second = declared.curriculum(edited)
    try:
        resumed = second.sampler(5, saved(before, step))
    except ValueError as error:
        # The sources may be too small for the rest; the past is never refused.
        assert "cannot be resumed" not in str(error)  # noqa: PT017 - any other error is fine
        assume(False)
        raise

    assert windows(resumed, range(step)) == windows(before, range(step))
    resumed.check(saved(before, step))
    later = data.draw(st.integers(step, resumed.total_steps))
    again = second.sampler(5, saved(resumed, later))
    everything = range(resumed.total_steps)
    assert again.total_steps == resumed.total_steps
    assert windows(again, everything) == windows(resumed, everything)
    assert [again.phase(step) for step in everything] == [
        resumed.phase(step) for step in everything
    ]


@SLOW
@given(data=st.data())
def test_no_source_is_read_more_often_than_its_policy_allows(
    data: st.DataObject,
) -> None:
    declared = Declared(data)
    curriculum = declared.curriculum()
    sampler = curriculum.sampler(1)
    plan = curriculum.plan(1)

    for source in plan.sources:
        seen = coverage(
            [
                (step, start, stop - plan.overlap)
                for step, start, stop in delivered(sampler)[source.name]
            ],
            source.num_tokens,
        )
        assert seen.max() <= np.ceil(source.epochs - 1e-9)
        limit = MOST_EPOCHS[declared.policies[source.name]]
        assert limit is None or seen.max() <= limit
