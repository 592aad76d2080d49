"""What a loader asks for ahead, a sampler works out once and keeps until it is read."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum._block import make_block
from roxxel_curriculum.testing import PositionReader
from roxxel_loader._row_source import MAX_ASKED_ROWS, Hints
from roxxel_loader.sharding._layout import default_sharding, make_layout

COLUMNS = 8


@pytest.mark.parametrize("rows", [1, 64, 256, 1639, 2731, 3000, 4097])
def test_what_is_asked_for_is_worked_out_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = 3 + 150_000 // rows
    phases = [Phase(stop, rows, COLUMNS)]
    sampler = Curriculum(PositionReader(4 << 20, "a"), phases).sampler(0)
    layout = make_layout((rows, COLUMNS), default_sharding())
    worked_out: list[tuple[int, int]] = []

    def noted(phase: Any, index: int, first: int, last: int, sources: Any) -> Any:
        worked_out.append((first, last))
        return make_block(phase, index, first, last, sources)

    monkeypatch.setattr("roxxel_curriculum._sampler.make_block", noted)
    hints = Hints(sampler, 0, stop)
    asked: list[int] = []
    for step in range(min(stop, 2000)):
        if step >= hints.ask_at:
            asked.append(step)
            hints.ask(step, layout)
        sampler.rows(step, slice(0, rows))

    assert len(worked_out) == len(set(worked_out)) > 1
    assert max(later - earlier for earlier, later in pairwise(asked)) > 1
    assert all((b - a) * rows <= MAX_ASKED_ROWS for a, b in pairwise(asked))
