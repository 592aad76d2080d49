"""A program that was taken over harms nothing of its successor, whenever it wakes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from .buckets import running_bucket
from .takeovers import gated, run_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["in a bucket", "on a disk"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, bool]]:
    """A folder, which a bucket may serve, and whether it is only on the disk."""
    root, on_disk = tmp_path_factory.mktemp("root"), request.param == "on a disk"
    (root / "data").mkdir(exist_ok=True)
    with contextlib.nullcontext() if on_disk else running_bucket(root):
        yield root, on_disk


def test_a_program_that_wakes_harms_nothing_of_its_successor(
    place: tuple[Path, bool],
) -> None:
    """The program was cut off between two requests of its second save."""
    root, on_disk = place
    requests, num_requests = 0, 1
    while requests < num_requests:
        with gated(root, f"wakes-{requests}", on_disk=on_disk) as gate:
            first = gate.start(num_saves=2)
            while gate.acknowledged != [1]:
                first.step()
            for _ in range(requests):
                first.step()
            second = gate.start(num_saves=2)
            second.finish()
            assert second.error is None
            newest = max(gate.acknowledged)
            second.cut_off()
            # The first program heals.
            num_left = 0
            while first.step() is not None:
                num_left += 1
                gate.check()
            if first.error is not None:
                # It may also see the steps of its successor first.
                said = str(first.error)
                assert "another program on" in said or "holds steps 2, 3" in said
            third = gate.start(num_saves=1)
            third.finish()
            assert third.restored == newest
            gate.check()
        num_requests = max(num_requests, requests + num_left)
        requests += 3


@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_of_programs_lose_no_committed_step(
    place: tuple[Path, bool], seed: int
) -> None:
    root, on_disk = place
    with gated(root, f"schedule-{seed}", on_disk=on_disk) as gate:
        run_schedule(gate, seed)
