"""The benchmarks of the checkpoints run once, small."""

from __future__ import annotations

from . import ckpt_blocking, ckpt_bucket, ckpt_restore, ckpt_small


def test_blocking_time() -> None:
    found = ckpt_blocking.main(["--megabytes", "1", "--rounds", "1", "--saves", "3"])

    assert 0 < found["blocking_s"] < found["total_s"]
    assert found["leaked_threads"] <= 0


def test_checkpoints_in_a_bucket() -> None:
    found = ckpt_bucket.main(
        ["--megabytes", "1", "--arrays", "3", "--rounds", "1", "--latency-ms", "1"]
    )

    assert found["disk"]["requests"] == [0]
    assert found["bucket"]["requests"][0] > 3
    assert all(0 < one["blocks"][0] < one["save"][0] for one in found.values())


def test_many_small_leaves() -> None:
    found = ckpt_small.main(["--leaves", "300", "--rounds", "1"])

    assert all(ratio > 0 for ratio in found.values())


def test_memory_of_a_restore() -> None:
    found = ckpt_restore.main(["--layers", "1", "--width", "16"])

    assert found.keys() == {"orbax device", "roxxel device", "roxxel none"}
