"""Grain reads the steps of a curriculum, and its state is the number of the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grain
import numpy as np
import pytest
from absl import flags
from roxxel_curriculum import Curriculum, CurriculumError, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_loader.bridges.grain import StepDataset

if TYPE_CHECKING:
    from roxxel_curriculum import Sampler


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
    doubled: Any = steps.map(lambda batch: 2 * batch)
    assert np.array_equal(doubled[6], 2 * sampler.batch(6))


def test_a_state_of_one_process_goes_on_with_two(sampler: Sampler) -> None:
    batches = iter(StepDataset(sampler).to_iter_dataset())
    assert_steps((next(batches) for _ in range(3)), sampler, range(3))

    state = batches.get_state()

    assert state == {"next_index": 3}
    for index, rows in enumerate((slice(0, 2), slice(2, 4))):
        others = iter(StepDataset(sampler, index, 2).to_iter_dataset())
        others.set_state(state)
        assert_steps(others, sampler, range(3, 8), rows)


def test_worker_processes_read_the_same_steps(sampler: Sampler) -> None:
    flags.FLAGS.mark_as_parsed()  # Grain reads them; `absl.app.run` parses them.
    steps = StepDataset(sampler)[:4].to_iter_dataset()

    batches = steps.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))

    assert_steps(batches, sampler, range(4))


def test_what_would_change_the_order_is_refused(sampler: Sampler) -> None:
    steps = StepDataset(sampler)

    with pytest.raises(ValueError, match="process_index"):
        steps[1::2]
    with pytest.raises(ValueError, match="process_index"):
        steps.slice(slice(0, None, 2))
    with pytest.raises(TypeError, match="seed of their sampler"):
        steps.shuffle(seed=1)
    with pytest.raises(TypeError, match="more steps"):
        steps.repeat(2)
    with pytest.raises(CurriculumError, match=r"batch_size=4.* 3 processes"):
        StepDataset(sampler, 0, 3)
