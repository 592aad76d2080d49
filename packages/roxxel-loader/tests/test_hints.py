from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_loader._row_source import (
    ASKED_BYTES,
    MAX_ASKED_ROWS,
    MAX_ASKED_STEPS,
    MAX_QUICKLY_ASKED_STEPS,
    QUICK_ASK_S,
    Hints,
)
from roxxel_loader.sharding._layout import Layout, default_sharding, make_layout

from .helpers import CountingSource


def layout_of(rows: int, columns: int) -> Layout:
    return make_layout((rows, columns), default_sharding())


def asked(
    monkeypatch: pytest.MonkeyPatch,
    taken_s: list[float],
    rows: list[int],
    stop: int,
    columns: int = 1024,
) -> list[tuple[int, int]]:
    """Return what is asked for by a loop over steps whose batches change in size."""
    clock = 0.0
    durations = chain.from_iterable((0.0, taken) for taken in taken_s * stop)

    def now() -> float:
        nonlocal clock
        clock += next(durations)
        return clock

    monkeypatch.setattr("roxxel_loader._row_source.perf_counter", now)
    source = CountingSource()
    hints = Hints(source, 3, stop)
    layouts = [layout_of(count, columns) for count in rows]
    for step in range(3, stop):
        if step >= hints.ask_at:
            hints.ask(step, layouts[step % len(layouts)])
        first, number = source.hints[-1]
        assert step < first + number
    return source.hints


@given(
    taken_s=st.lists(
        st.sampled_from([0.0, QUICK_ASK_S / 2, 2 * QUICK_ASK_S]), min_size=1
    ),
    rows=st.lists(st.sampled_from([1, 64, 3000, 40_000]), min_size=1, max_size=3),
    stop=st.integers(4, 2500),
)
def test_every_step_is_asked_for_once_in_order_and_before_it_is_read(
    taken_s: list[float], rows: list[int], stop: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        hints = asked(monkeypatch, taken_s, rows, stop)

    steps = [step for first, number in hints for step in range(first, first + number)]
    assert steps == list(range(3, stop))


def test_more_steps_are_asked_for_at_once_while_asking_is_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick, slow = QUICK_ASK_S / 2, 2 * QUICK_ASK_S

    hints = asked(monkeypatch, [quick] * 6 + [slow] * 9, [1], 3000)

    numbers = [number for _, number in hints]
    assert numbers[0] == 2 * MAX_ASKED_STEPS
    assert numbers[5] == MAX_QUICKLY_ASKED_STEPS
    assert numbers[9:12] == [MAX_ASKED_STEPS] * 3


def test_large_batches_are_asked_for_by_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = 2048

    hints = asked(monkeypatch, [0.0], [rows], 100)

    assert hints[1][1] == ASKED_BYTES // (rows * 1024 * 4)


def test_batches_of_many_short_rows_are_asked_for_by_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = 2048

    hints = asked(monkeypatch, [0.0], [rows], 100, columns=8)

    assert hints[1][1] == MAX_ASKED_ROWS // rows
