"""A sampler computes the positions that a loader hints at once, until they are read."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum._samples import make_block
from roxxel_curriculum.testing import PositionReader
from roxxel_loader._row_source import MAX_ASKED_ROWS, Hints
from roxxel_loader.sharding._layout import default_sharding, make_layout

COLUMNS = 8


@pytest.mark.parametrize("rows", [1, 64, 256, 1639, 2731, 3000, 4097])
def test_hinted_positions_are_computed_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = 3 + 150_000 // rows
    phases = [Phase(stop, rows, COLUMNS)]
    sampler = Curriculum(PositionReader(4 << 20, "a"), phases).sampler(0)
    layout = make_layout((rows, COLUMNS), default_sharding())
    computed: list[range] = []

    def noted(phase: Any, steps: range, source_keys: Any) -> Any:
        computed.append(steps)
        return make_block(phase, steps, source_keys)

    monkeypatch.setattr("roxxel_curriculum.sampler.make_block", noted)
    hints = Hints(sampler, 0, stop)
    asked: list[int] = []
    for step in range(min(stop, 2000)):
        if step >= hints.ask_at:
            asked.append(step)
            hints.ask(step, layout)
        sampler.rows(step, slice(0, rows))

    assert len(computed) == len(set(computed)) > 1
    assert max(later - earlier for earlier, later in pairwise(asked)) > 1
    assert all((b - a) * rows <= MAX_ASKED_ROWS for a, b in pairwise(asked))
