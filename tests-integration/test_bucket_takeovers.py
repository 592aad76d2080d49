"""A program that was taken over harms nothing of its successor, whenever it wakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .buckets import running_bucket
from .takeovers import gated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a bucket that is served."""
    root = tmp_path_factory.mktemp("bucket")
    with running_bucket(root):
        yield root


def test_a_program_that_wakes_harms_nothing_of_its_successor(bucket: Path) -> None:
    """The program was cut off between two requests of its second save."""
    requests, num_requests = 0, 1
    while requests < num_requests:
        with gated(bucket, f"wakes-{requests}") as gate:
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
                assert "another program on" in str(first.error)
            third = gate.start(num_saves=1)
            third.finish()
            assert third.restored == newest
            gate.check()
        num_requests = max(num_requests, requests + num_left)
        requests += 3
