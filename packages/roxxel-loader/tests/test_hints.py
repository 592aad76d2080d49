"""`will_need` of a source: every step once, in order, before it is read."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_loader import device_stream

from .helpers import CountingSource, sharded

if TYPE_CHECKING:
    import numpy.typing as npt


class Noted(CountingSource):
    """Batches of changing size without values; each has as many rows as told."""

    def __init__(self, rows: list[int], columns: int) -> None:
        super().__init__()
        self._rows = rows
        self._columns = columns

    def shape(self, step: int) -> tuple[int, int]:
        return self._rows[step % len(self._rows)], self._columns

    def rows(
        self, step: int, rows: slice, columns: slice | None = None
    ) -> npt.NDArray[np.int8]:
        del columns
        first, number = self.hints[-1]
        assert step < first + number
        return np.broadcast_to(np.int8(0), (rows.stop - rows.start, self._columns))


@settings(max_examples=30)
@given(
    rows=st.lists(st.sampled_from([1, 64, 3000, 40_000]), min_size=1, max_size=3),
    columns=st.sampled_from([0, 1, 8, 1024]),
    start=st.integers(0, 9),
    num=st.integers(1, 60),
)
def test_every_step_is_hinted_once_in_order_and_before_it_is_read(
    rows: list[int], columns: int, start: int, num: int
) -> None:
    source = Noted(rows, min(columns, 4_000_000 // max(rows)))

    for _ in device_stream(source, start, start + num, workers=0):
        pass

    hinted = [step for first, n in source.hints for step in range(first, first + n)]
    assert hinted == list(range(start, start + num))


@pytest.mark.parametrize("shape", [(1, 1025), (64, 1025), (4096, 8)])
def test_hints_are_fewer_than_steps_and_bounded_by_values(
    shape: tuple[int, int],
) -> None:
    source = Noted([shape[0]], shape[1])

    for _ in device_stream(source, 0, 400, workers=0):
        pass

    firsts = [first for first, _ in source.hints]
    assert len(firsts) < 40
    assert all(b > a for a, b in pairwise(firsts))
    assert all(n * np.prod(shape) <= 1 << 22 for _, n in source.hints)


def test_a_hint_without_rows_is_given_only_to_a_process_that_reads_all() -> None:
    source = CountingSource()

    for _ in device_stream(source, 0, 4, sharded((8,), "a"), workers=0):
        pass

    assert source.hints == [(0, 4)]
