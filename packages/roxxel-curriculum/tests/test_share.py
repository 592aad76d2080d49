"""What the loops of other frameworks take from a sampler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, CurriculumError, Phase, StateMismatch
from roxxel_curriculum.run_log import METRICS, RunLog
from roxxel_curriculum.share import Share, next_token, step_of_row
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.testing import PositionReader

if TYPE_CHECKING:
    from pathlib import Path

PHASES = st.lists(
    st.builds(Phase, st.integers(1, 4), st.sampled_from([2, 4, 6]), st.integers(3, 9)),
    min_size=1,
    max_size=4,
)


def curriculum_of(phases: list[Phase]) -> Curriculum:
    return Curriculum(PositionReader(4000), phases)


@given(PHASES)
def test_every_row_of_a_run_has_one_number(phases: list[Phase]) -> None:
    sampler = curriculum_of(phases).sampler(3)
    places = [
        (step, row)
        for step in range(sampler.total_steps)
        for row in range(sampler.shape(step)[0])
    ]

    assert [step_of_row(sampler, index) for index in range(len(places))] == places
    for beyond in (-1, len(places)):
        with pytest.raises(IndexError, match=str(len(places))):
            step_of_row(sampler, beyond)


@given(PHASES, st.integers(0, 1), st.data())
def test_an_iterator_goes_on_from_its_state(
    phases: list[Phase], index: int, data: st.DataObject
) -> None:
    curriculum = curriculum_of(phases)
    sampler = curriculum.sampler(3, fields=("tokens", "loss_mask"))
    steps = StepIterator(curriculum, 3, index, 2, fields=("tokens", "loss_mask"))
    for _ in range(data.draw(st.integers(0, sampler.total_steps))):
        next(steps)
    state = json.loads(json.dumps(steps.state()))
    assert state == sampler.state(steps.step)

    resumed = StepIterator(curriculum, 3, index, 2, fields=("tokens", "loss_mask"))
    resumed.restore(state)

    rest = [each["tokens"] for each in resumed]
    share = Share(sampler, index, 2)
    for step, tokens in enumerate(rest, state["step"]):
        rows = share.rows(step)
        assert np.array_equal(tokens, sampler.batch(step)["tokens"][rows])
    assert len(rest) == sampler.total_steps - state["step"]


def test_a_state_of_another_run_is_refused() -> None:
    curriculum = curriculum_of([Phase(4, 2, 9)])
    steps = StepIterator(curriculum, 3)
    next(steps)

    for other in (
        StepIterator(curriculum, 4),
        StepIterator(curriculum_of([Phase(4, 4, 9)]), 3),
    ):
        with pytest.raises(StateMismatch):
            other.restore(steps.state())
    with pytest.raises(CurriculumError, match="multiple of 3"):
        StepIterator(curriculum, 3, 0, 3)


def test_the_log_of_an_iterator_begins_at_its_step(tmp_path: Path) -> None:
    curriculum = curriculum_of([Phase(4, 2, 9)])
    steps = StepIterator(curriculum, 3)
    of_run = tmp_path, curriculum, steps.sampler
    with RunLog(*of_run, state=steps.state()) as log:
        for step in range(2):
            log.record(step, next(steps)["tokens"])
    with RunLog(*of_run, state=steps.state()) as log:
        assert log.step == 2
    lines = (tmp_path / METRICS).read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 2, 2, 2]


def test_columns_say_what_is_learned() -> None:
    without: dict[str, Any] = {"self": [0]}
    curriculum = Curriculum(PositionReader(4000), [Phase(9, 4, 9)], without=without)
    sampler = curriculum.sampler(
        3, fields=("tokens", "positions", "segment_ids", "loss_mask")
    )
    for step in range(9):
        batch = sampler.batch(step)
        columns = next_token(batch)
        assert np.array_equal(columns["inputs"], batch["tokens"][:, :-1])
        assert np.array_equal(columns["targets"], batch["tokens"][:, 1:])
        assert np.array_equal(columns["weights"], batch["loss_mask"][:, 1:])
        for field in ("positions", "segment_ids"):
            assert np.array_equal(columns[field], batch[field][:, :-1])
    with pytest.raises(KeyError, match="loss_mask"):
        next_token({"tokens": np.zeros((1, 3), int)})
