"""Every line about a start is read back as it was composed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from roxxel_train import starts
from roxxel_train.starts import RunStart, starts_in

counts = st.integers(0, 10**12)
MOMENT = "2026-01-01T00:00:10Z"
SECONDS = starts.time_of(MOMENT) or 0.0


@given(counts, counts, st.integers(1, 9))
def test_a_start_is_read_back_with_its_branch(total: int, step: int, n: int) -> None:
    lines = [starts.begins(total, n), starts.branches(step, "runs/a")]

    [found] = starts_in((MOMENT, line) for line in lines)

    assert found == RunStart(SECONDS, SECONDS, step, SECONDS, total)


@given(counts, counts, st.integers(0, 9), st.integers(1, 3), st.floats(0, 1))
def test_a_resumed_start_is_read_back_with_its_rows_and_its_share(
    total: int, step: int, restored: int, number: int, kept: float
) -> None:
    lines = [
        starts.resumes(step, total, restored),
        starts.drops(number, step, MOMENT, "were dropped"),
        starts.spent(f"{kept:.1%} of 9 s in steps kept".replace("%", " %")),
    ]

    [found] = starts_in((MOMENT, line) for line in lines)

    assert (found.step, found.total_steps) == (step, total)
    assert found.ready - found.began == restored
    assert found.dropped_until == SECONDS
    assert found.kept is not None
    assert abs(found.kept - kept) < 1e-3


@given(counts)
def test_a_start_of_a_complete_run_is_idle(total: int) -> None:
    [found] = starts_in([(MOMENT, starts.is_complete(total, ", because it ended"))])

    assert found.is_idle
    assert found.step == found.total_steps == total


def test_one_row_is_no_rows() -> None:
    assert starts.drops(1, 3, MOMENT, "was dropped").startswith("1 row of metrics ")
