"""The benchmark of long logs runs once, small."""

from __future__ import annotations

from . import report_rows


def test_long_logs() -> None:
    found = report_rows.main(["--rows", "300", "--checkpoints", "2"])

    assert {job for _, job in found} == {"parse", "report", "ls", "ckpt ls", "resume"}
    assert all(peak > 0 for _, peak in found.values())
