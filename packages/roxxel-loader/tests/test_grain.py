"""Grain reads the steps of a curriculum, and its state is that of the sampler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import grain
import numpy as np
import pytest
from absl import flags
from roxxel_curriculum import Curriculum, CurriculumError, Phase, StateMismatch
from roxxel_curriculum.testing import PositionReader
from roxxel_loader.bridges.grain import StepDataset

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_curriculum import Sampler

pytestmark = pytest.mark.first


@pytest.fixture
def sampler() -> Sampler:
    return Curriculum(
        PositionReader(10_000), [Phase(5, 4, 17), Phase(3, 4, 33)]
    ).sampler(seed=3)


def assert_steps(
    batches: Any, sampler: Sampler, steps: range, rows: Any = slice(None)
) -> None:
    found = [*batches]
    assert len(found) == len(steps)
    for step, batch in zip(steps, found, strict=True):
        assert np.array_equal(batch, sampler.batch(step)[rows])


def test_batches_are_those_of_the_sampler(sampler: Sampler) -> None:
    steps = StepDataset(sampler)

    assert len(steps) == 8
    assert_steps(steps.to_iter_dataset(), sampler, range(8))
    assert_steps(steps[5:].to_iter_dataset(), sampler, range(5, 8))
    doubled: Any = steps.map(lambda batch: 2 * batch)[5:]
    assert np.array_equal(doubled[1], 2 * sampler.batch(6))
    assert np.array_equal(next(iter(doubled)), 2 * sampler.batch(5))


def test_a_state_of_one_process_goes_on_with_two(sampler: Sampler) -> None:
    batches = iter(StepDataset(sampler).to_iter_dataset())
    assert_steps((next(batches) for _ in range(3)), sampler, range(3))

    state = batches.get_state()

    assert json.loads(json.dumps(state)) == sampler.state(3)
    for index, rows in enumerate((slice(0, 2), slice(2, 4))):
        others = iter(StepDataset(sampler, index, 2).to_iter_dataset())
        others.set_state(state)
        assert_steps(others, sampler, range(3, 8), rows)


def made_by(seed: int, tokens: int = 10_000, first: int = 5) -> Sampler:
    phases = [Phase(first, 4, 17), Phase(3, 4, 33)]
    return Curriculum(PositionReader(tokens), phases).sampler(seed=seed)


PIPELINES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda steps: steps,
    "slice": lambda steps: steps[1:],
    "map": lambda steps: steps.map(abs),
    "map after": lambda steps: steps.to_iter_dataset().map(abs),
    "batch after": lambda steps: steps.to_iter_dataset().batch(1),
    "filter after": lambda steps: steps[1:].to_iter_dataset().filter(np.any),
}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (made_by(seed=4), "seed is 4 instead of 3"),
        (made_by(seed=3, tokens=9_000), "10,?000"),
        (made_by(seed=3, first=1), "phase"),
    ],
)
@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
def test_a_state_of_other_data_is_refused(
    sampler: Sampler, other: Sampler, named: str, pipeline: Any
) -> None:
    batches = iter(pipeline(StepDataset(sampler)))
    expected = [next(batches) for _ in range(2)]
    state = batches.get_state()
    expected.append(next(batches))

    again = iter(pipeline(StepDataset(made_by(seed=3))))
    again.set_state(state)

    assert np.array_equal(next(again), expected[2])
    with pytest.raises(StateMismatch, match=named):
        iter(pipeline(StepDataset(other))).set_state(state)


def test_a_number_of_a_step_alone_is_no_state(sampler: Sampler) -> None:
    with pytest.raises(StateMismatch, match="digest"):
        iter(StepDataset(sampler)).set_state({"next_index": 3})


def test_a_state_of_a_step_outside_the_part_is_refused(sampler: Sampler) -> None:
    with pytest.raises(IndexError, match=r"of step 1, .*\[2, 8\)"):
        iter(StepDataset(sampler)[2:]).set_state(sampler.state(1))
    with pytest.raises(IndexError, match=r"of step 5, .*\[0, 4\)"):
        iter(StepDataset(sampler)[:4]).set_state(sampler.state(5))


def test_worker_processes_read_the_same_steps(sampler: Sampler) -> None:
    flags.FLAGS.mark_as_parsed()  # Grain reads them; `absl.app.run` parses them.
    options = grain.MultiprocessingOptions(num_workers=2)
    steps = StepDataset(sampler).to_iter_dataset().mp_prefetch(options)
    batches = iter(steps)
    assert_steps((next(batches) for _ in range(4)), sampler, range(4))

    state = batches.get_state()
    batches.close()
    again = iter(steps)
    again.set_state(state)

    assert_steps(again, sampler, range(4, 8))


def test_what_would_change_the_order_is_refused(sampler: Sampler) -> None:
    steps = StepDataset(sampler)

    with pytest.raises(ValueError, match="process_index"):
        steps[1::2]
    with pytest.raises(ValueError, match="process_index"):
        steps.slice(slice(0, None, 2))
    everywhere: Any = steps
    for refused in ("shuffle", "repeat", "seed", "batch", "random_map", "filter"):
        with pytest.raises(TypeError, match="to_iter_dataset"):
            getattr(everywhere, refused)(1)
    with pytest.raises(ValueError, match="sequential_slice"):
        steps.to_iter_dataset().set_slice(slice(0, None, 2), sequential_slice=True)
    with pytest.raises(CurriculumError, match=r"batch_size=4.* 3 processes"):
        StepDataset(sampler, 0, 3)
