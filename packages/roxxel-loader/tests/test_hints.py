from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum._block import make_block
from roxxel_curriculum.testing import PositionReader
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


def layout_of(rows: int, columns: int = 1024) -> Layout:
    return make_layout((rows, columns), default_sharding())


def asked(
    monkeypatch: pytest.MonkeyPatch, taken_s: list[float], rows: list[int], stop: int
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
    layouts = [layout_of(count) for count in rows]
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


@pytest.mark.parametrize("rows", [1, 64, 256, 3000])
def test_what_is_asked_for_is_worked_out_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = 3 + 150_000 // rows
    sampler = Curriculum(PositionReader(4 << 20, "a"), [Phase(stop, rows, 8)]).sampler(
        0
    )
    worked_out: list[tuple[int, int]] = []

    def noted(phase: Any, index: int, first: int, last: int, sources: Any) -> Any:
        worked_out.append((first, last))
        return make_block(phase, index, first, last, sources)

    monkeypatch.setattr("roxxel_curriculum._sampler.make_block", noted)
    hints = Hints(sampler, 0, stop)
    asked_steps: list[int] = []
    for step in range(min(stop, 2000)):
        if step >= hints.ask_at:
            asked_steps.append(step)
            hints.ask(step, layout_of(rows, 8))
        sampler.rows(step, slice(0, rows))

    assert len(worked_out) == len(set(worked_out)) > 1
    gaps = [later - earlier for earlier, later in pairwise(asked_steps)]
    assert max(gaps) * rows <= max(MAX_ASKED_ROWS, rows)
