"""The benchmarks of imports and of a run's start run once, small."""

from __future__ import annotations

import pytest

from . import startup


def test_start_up() -> None:
    found = startup.main(["--rounds", "1", "roxxel_format", "numpy"])

    assert list(found) == ["roxxel_format", "numpy"]


@pytest.mark.long
def test_first_step() -> None:
    found = startup.main(["--first-step", "--rounds", "1"])

    assert min(found.values()) > 0
