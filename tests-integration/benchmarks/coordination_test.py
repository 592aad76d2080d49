"""The benchmark `coordination.py` runs once, small."""

from __future__ import annotations

from . import coordination


def test_coordination() -> None:
    [cost] = coordination.main(["--processes", "3", "--idle", "0.1"])

    assert cost.processes == 3
    assert cost.all_act_s >= cost.agreement_s > 0
