"""A sampler knows at which steps every source begins an epoch."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from roxxel_curriculum import Curriculum, Phase, Sampler
from roxxel_curriculum.testing import PositionReader

from .helpers import curricula

SLOW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def newest_epochs(sampler: Sampler, source: str) -> list[int]:
    """Return the newest epoch that the source has begun by the end of each step.

    The samples are those of the data, the skipped ones included.
    """
    newest = 0
    by_step: list[int] = []
    for phase in sampler.phases:
        for step in range(1, phase.steps + 1):
            if source in phase.cursors:
                stream, before = phase.cursors[source]
                count = phase.counts(phase.samples_before(step))[source]
                if count:
                    (last,) = stream.rounds(before + count - 1, 1)
                    newest = max(newest, last.epoch)
            by_step.append(newest)
    return by_step


@SLOW
@given(curriculum=curricula())
def test_epochs_begin_at_the_steps_whose_samples_are_of_a_newer_one(
    curriculum: Curriculum,
) -> None:
    sampler = curriculum.sampler(1)
    for source in sampler.source_names:
        newest = [0, *newest_epochs(sampler, source)]
        begins = [
            (step, after)
            for step, (before, after) in enumerate(pairwise(newest))
            if before < after
        ]
        for step in range(sampler.total_steps + 1):
            expected = next((found for found in begins if found[0] >= step), None)
            assert sampler.next_epoch(source, step) == expected


@SLOW
@given(curriculum=curricula())
def test_epochs_read_are_those_of_the_plan_at_the_ends_of_phases(
    curriculum: Curriculum,
) -> None:
    sampler, plan = curriculum.sampler(1), curriculum.plan(1)
    read = [sampler.epochs(step) for step in range(sampler.total_steps + 1)]

    assert read[0] == dict.fromkeys(sampler.source_names, 0.0)
    assert read[-1] == {source.name: source.epochs for source in plan.sources}
    at_ends: defaultdict[str, float] = defaultdict(float)
    for phase in plan.phases:
        at_ends |= {source.name: source.epochs for source in phase.sources}
        assert read[phase.stop] == {name: at_ends[name] for name in read[0]}


def test_epochs_of_a_run_in_which_a_source_repeats_within_each_step() -> None:
    sampler = Curriculum(PositionReader(100), [Phase(4, 30, 10)]).sampler(0)

    assert sampler.epochs(3) == {"self": 9.0}
    assert [sampler.next_epoch("self", step) for step in range(5)] == [
        (0, 2),
        (1, 5),
        (2, 8),
        (3, 11),
        None,
    ]


def test_epochs_of_another_source_or_step_are_an_error() -> None:
    sampler = Curriculum(PositionReader(100), [Phase(4, 2, 10)]).sampler(0)

    with pytest.raises(KeyError, match="'web' is not a source; there are 'self'"):
        sampler.next_epoch("web", 0)
    with pytest.raises(IndexError, match=r"step 5 is outside \[0, 4\]"):
        sampler.next_epoch("self", 5)
    with pytest.raises(IndexError, match=r"step 5 is outside \[0, 4\]"):
        sampler.epochs(5)
