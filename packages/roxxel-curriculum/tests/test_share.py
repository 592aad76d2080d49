"""What the loops of other frameworks take from a sampler."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, CurriculumError, Phase, StateMismatch
from roxxel_curriculum.digest import batch_digest
from roxxel_curriculum.run_log import METRICS
from roxxel_curriculum.share import (
    Share,
    check_length,
    check_parts,
    check_steps,
    next_token,
    step_of_row,
)
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


def rows_of(folder: Path) -> list[Any]:
    lines = (folder / METRICS).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [(row["step"], row.get("loss")) for row in found if row["kind"] == "train"]


def logged(folder: Path) -> StepIterator:
    steps = StepIterator(curriculum_of([Phase(4, 2, 9)]), 3)
    steps.log_to(folder)
    return steps


def test_a_row_waits_for_what_is_told_late(tmp_path: Path) -> None:
    steps = logged(tmp_path)
    for step in range(3):
        tokens = next(steps)["tokens"]
        steps.note(digest=partial(batch_digest, tokens))
        steps.write(step)
        steps.note(loss=np.float32(step))
    assert rows_of(tmp_path) == [(1, 0.0), (2, 1.0)]

    steps.note(3, digest=batch_digest(next(steps)["tokens"]))
    steps.state()  # for a checkpoint that comes before the loss
    steps.note(3, loss=2.5)
    steps.close()

    assert rows_of(tmp_path) == [(1, 0.0), (2, 1.0), (3, 2.0), (4, None)]


def test_a_restored_iterator_continues_its_log(tmp_path: Path) -> None:
    steps, states = logged(tmp_path), list[Any]()
    for batch in steps:
        steps.note(digest=batch_digest(batch["tokens"]))
        states.append(steps.state())
    steps.close()

    resumed = StepIterator(steps.curriculum, 3)
    resumed.restore(states[1])
    for _ in range(2):  # the second call finds the log open
        resumed.log_to(tmp_path)
    for batch in resumed:
        resumed.note(digest=batch_digest(batch["tokens"]))
    resumed.close()

    assert [step for step, _ in rows_of(tmp_path)] == [1, 2, 3, 4, 3, 4]


def test_steps_that_are_written_at_once_took_their_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    steps = logged(tmp_path)
    for batch in steps:
        clock[0] += 2.0
        steps.note(digest=batch_digest(batch["tokens"]))
    steps.close()

    lines = (tmp_path / METRICS).read_text().splitlines()[1:-1]
    assert [json.loads(line)["step_s"] for line in lines] == [2.0] * 4
    assert [json.loads(line)["tokens_per_s"] for line in lines] == [9.0] * 4


def test_a_step_that_failed_has_no_row(tmp_path: Path) -> None:
    steps = logged(tmp_path)
    for step in range(2):
        steps.note(step, digest=batch_digest(next(steps)["tokens"]))
    steps.close(RuntimeError())

    assert rows_of(tmp_path) == [(1, None)]
    assert "ended with an error" in (tmp_path / METRICS).read_text()


def test_one_process_writes_and_the_others_need_no_case(tmp_path: Path) -> None:
    steps = StepIterator(curriculum_of([Phase(4, 2, 9)]), 3)
    steps.log_to(tmp_path, writes=False)
    steps.log_to(None)
    next(steps)
    steps.note(digest=0)
    steps.state()
    steps.close()

    assert not [*tmp_path.iterdir()]


def test_a_phase_beyond_a_table_of_positions_is_named() -> None:
    sampler = curriculum_of([Phase(1, 2, 9), Phase(1, 2, 17), Phase(1, 2, 5)]).sampler(
        0
    )

    check_length(sampler, "max_len", 16)
    check_length(sampler, "max_len", 17, over=0)
    with pytest.raises(ValueError, match=r"phase 1 .* set max_len to 16 or more"):
        check_length(sampler, "max_len", 15)


def test_what_a_trainer_would_cut_is_named_with_the_remedy() -> None:
    sampler = curriculum_of([Phase(1, 4, 9), Phase(1, 6, 9)]).sampler(0)

    check_parts(sampler, 2, "processes")
    with pytest.raises(CurriculumError, match=r"phase 1 .* 4 parts .* multiple of 4"):
        check_parts(sampler, 4, "parts")
    check_steps(sampler, "steps", 2)
    with pytest.raises(ValueError, match=r"steps=3, .* set steps to 2"):
        check_steps(sampler, "steps", 3)


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
