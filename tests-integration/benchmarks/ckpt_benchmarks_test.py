"""The benchmark of the checkpoints runs once, small."""

from __future__ import annotations

from . import ckpt_blocking


def test_blocking_time() -> None:
    found = ckpt_blocking.main(["--megabytes", "1", "--rounds", "1", "--saves", "3"])

    assert 0 < found["blocking_s"] < found["total_s"]
    assert found["leaked_threads"] <= 0
