"""Arguments of any number type, and numbers too large to be met."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from roxxel_curriculum import Curriculum, IndexSet, Phase
from roxxel_curriculum.testing import PositionReader


def make(*declared: Phase, **options: Any) -> Curriculum:
    return Curriculum(PositionReader(5000), declared, **options)


def test_a_hint_for_a_numpy_integer_of_steps_is_that_for_a_python_integer() -> None:
    plain, small = PositionReader(50_000), PositionReader(50_000)

    kinds: list[tuple[PositionReader, Any]] = [(plain, int), (small, np.uint8)]
    for reader, kind in kinds:
        sampler = Curriculum(reader, [Phase(300, 2, 9)]).sampler(1)
        sampler.will_need(kind(200), kind(90))

    [(starts, length)], [(others, other_length)] = plain.hints, small.hints
    assert (starts.size, length) == (180, 9) == (others.size, other_length)
    assert (starts == others).all()


INTEGER_TYPES = pytest.mark.parametrize(
    "kind", [np.uint8, np.int64, np.array], ids=["uint8", "int64", "0-d array"]
)


@INTEGER_TYPES
def test_any_integer_is_a_size_of_a_phase(kind: Any) -> None:
    assert Phase(kind(3), kind(2), kind(9)) == Phase(3, 2, 9)


@INTEGER_TYPES
def test_any_integer_is_a_step(kind: Any) -> None:
    sampler = make(Phase(9, 2, 9)).sampler(7)
    step, row = kind(5), kind(1)

    assert (sampler.batch(step) == sampler.batch(5)).all()
    assert (sampler.rows(step, [1]) == sampler.rows(5, [1])).all()
    assert (sampler.windows(step).start == sampler.windows(5).start).all()
    assert sampler.locate(step, row) == sampler.locate(5, 1)
    assert sampler.shape(step) == (2, 9)
    assert sampler.phase(step) == 0
    assert sampler.state(step) == sampler.state(5)
    assert sampler.delivered_tokens(step) == sampler.delivered_tokens(5)
    assert sampler.planned_tokens(step) == sampler.planned_tokens(5)


@pytest.mark.parametrize("step", [5.0, "5", np.float32(5), True, None])
def test_a_step_that_is_not_an_integer_is_one_sentence(step: Any) -> None:
    sampler = make(Phase(9, 2, 9)).sampler(7)
    calls: list[Any] = [
        sampler.batch,
        sampler.windows,
        sampler.shape,
        sampler.phase,
        sampler.state,
        sampler.delivered_tokens,
        sampler.planned_tokens,
        sampler.will_need,
        partial(sampler.rows, rows=[0]),
        partial(sampler.locate, row=0),
    ]

    for call in calls:
        with pytest.raises(TypeError, match="step must be an integer, got") as info:
            call(step)
        assert str(info.value) == f"step must be an integer, got {step!r}"
    with pytest.raises(TypeError, match="row must be an integer, got"):
        sampler.locate(5, step)
    with pytest.raises(TypeError, match="number of steps must be an integer, got"):
        sampler.will_need(0, step)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (np.int64(2), 2),
        (np.float64(0.2), 0.2),
        (np.array(2), 2),
    ],
    ids=["int64", "float64", "array"],
)
def test_epochs_may_be_a_number_of_numpy(given: Any, same: float) -> None:
    phase, plain = (Phase(batch_size=2, seq_len=9, epochs=x) for x in (given, same))

    assert make(phase).total_steps == make(plain).total_steps
    assert phase.exact_epochs == plain.exact_epochs


@pytest.mark.parametrize("wrong", [np.complex64(1), np.bool_(1), "1"], ids=str)
def test_epochs_that_are_not_a_real_number_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="epochs must be a finite number above 0"):
        Phase(batch_size=2, seq_len=9, epochs=wrong)


@pytest.mark.parametrize(
    ("starts", "stops", "error"),
    [
        ([0], [1.5], TypeError),
        ([0], ["9"], TypeError),
        ([True], [2], TypeError),
        (0, 9, TypeError),
        ([0], [1, 2], ValueError),
        ([2**63], [2**63 + 5], ValueError),
        ([0], [2**64], TypeError),
    ],
)
def test_an_index_set_rounds_and_repeats_nothing(
    starts: Any, stops: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"starts.*stops"):
        IndexSet(starts, stops)


@pytest.mark.parametrize("fields", [None, 5, True])
def test_fields_that_are_no_list_are_one_sentence(fields: Any) -> None:
    with pytest.raises(TypeError, match="fields must be a list of names"):
        make(Phase(3, 2, 9)).sampler(0, fields=fields)


@pytest.mark.parametrize("argument", ["scale", "tokens"])
@pytest.mark.parametrize("value", ["1", True, np.bool_(True)], ids=repr)
def test_a_share_of_a_proxy_is_a_number(argument: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be an? "):
        make(Phase(3, 2, 9)).proxy(**{argument: value})
