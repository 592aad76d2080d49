"""A sampler computes the positions that a loader hints at once, until they are read."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum._bind.samples import make_block
from roxxel_curriculum.testing import PositionReader
from roxxel_loader import device_stream

COLUMNS = 128


@pytest.mark.parametrize("rows", [1, 64, 256, 1639, 2731, 4097])
def test_hinted_positions_are_computed_once(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = 3 + 50_000 // rows
    phases = [Phase(stop, rows, COLUMNS)]
    sampler = Curriculum(PositionReader(8 << 20, "a"), phases).sampler(0)
    computed: list[range] = []

    def noted(phase: Any, steps: range, source_keys: Any) -> Any:
        computed.append(steps)
        return make_block(phase, steps, source_keys)

    monkeypatch.setattr("roxxel_curriculum._bind.samples.make_block", noted)
    for _ in device_stream(sampler, 0, min(stop, 2000), workers=0):
        pass

    assert len(computed) == len(set(computed)) > 1
