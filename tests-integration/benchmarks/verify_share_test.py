"""The benchmark of a verified share runs once, small."""

from __future__ import annotations

import pytest

from . import verify_share


@pytest.mark.long
def test_a_share_of_a_run_is_verified() -> None:
    found = verify_share.main(["--steps", "100", "--width", "8"])

    assert found["run"] > 0
    assert found["1 %"] > 0
