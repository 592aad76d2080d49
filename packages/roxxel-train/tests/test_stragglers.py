from __future__ import annotations

import pytest
from roxxel_train._observe.stragglers import Stragglers

STEP_S = 0.25


class Cluster:
    """Own times of four processes; the third may be slow."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps = 0
        self.own = dict.fromkeys(range(4), 0.0)
        self.stragglers = Stragglers(
            lambda: {p: (self.steps, own) for p, own in self.own.items()},
            self.lines.append,
        )

    def row(self, extra_s: float, steps: int = 2) -> dict[str, float]:
        """Return the lag of a row after some steps."""
        self.steps += steps
        for process in self.own:
            usual = 0.01 + 0.001 * (process == 1)
            self.own[process] += steps * (usual + extra_s * (process == 2))
        return self.stragglers.lag(self.steps, STEP_S)


def test_the_slowest_process_and_its_lag_are_those_of_a_hand_computation() -> None:
    cluster = Cluster()

    assert cluster.row(0.2) == {}  # nothing to compare with yet
    lag_s = pytest.approx(0.2)
    assert cluster.row(0.2) == {"slowest_process": 2, "lag_s": lag_s}
    lag_s = pytest.approx(0.001)
    assert cluster.row(0.0) == {"slowest_process": 1, "lag_s": lag_s}


def test_a_process_that_stays_behind_is_named_once_until_it_recovers() -> None:
    cluster = Cluster()
    for _ in range(9):
        cluster.row(0.2)

    [line] = cluster.lines
    assert line.startswith("step 8: process 2 stays behind")
    assert "0.20 s" in line

    cluster.row(0.0)
    for _ in range(3):
        cluster.row(0.2)
    assert len(cluster.lines) == 2


def test_a_small_or_a_single_delay_is_no_line() -> None:
    cluster = Cluster()
    for row in range(12):
        cluster.row(0.2 if row % 3 else 0.02)

    assert cluster.lines == []


def test_a_row_without_news_repeats_the_lag_and_does_not_count() -> None:
    cluster = Cluster()
    cluster.row(0.2)
    known = cluster.row(0.2)

    assert [cluster.row(0.2, steps=0) for _ in range(5)] == [known] * 5
    assert cluster.lines == []


def test_a_single_process_has_no_lag() -> None:
    lines: list[str] = []

    assert Stragglers(dict, lines.append).lag(1, STEP_S) == {}
