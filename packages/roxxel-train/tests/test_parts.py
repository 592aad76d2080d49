from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_format import Roxxel
from roxxel_train._step.fed import FedRows, deal_rows

from .helpers import mesh_of, nothing_of, rows, trainer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt


def rows_of_parts(
    source: npt.NDArray[np.integer], num_parts: int
) -> npt.NDArray[np.int64]:
    """Return the rows of every part, of shape `(groups, parts)`."""
    order = deal_rows(source, num_parts).reshape(-1, num_parts)
    return order + np.arange(0, len(source), num_parts)[:, None]


def check_parts(source: npt.NDArray[np.integer], num_parts: int) -> None:
    """Check that no two parts are more than three rows of a source apart."""
    found = rows_of_parts(source, num_parts)
    for name in np.unique(source):
        assert np.ptp((source[found] == name).sum(axis=0)) <= 3


@given(data=st.data(), num_parts=st.integers(1, 9), groups=st.integers(1, 12))
def test_every_group_gives_each_part_one_row(
    data: st.DataObject, num_parts: int, groups: int
) -> None:
    num_rows = num_parts * groups
    names = st.lists(st.integers(0, 5), min_size=num_rows, max_size=num_rows)

    found = rows_of_parts(np.asarray(data.draw(names)), num_parts)

    rows = np.arange(num_rows).reshape(found.shape)
    assert np.array_equal(np.sort(found, axis=1), rows)


@pytest.mark.parametrize("period", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("num_parts", [2, 3, 4, 8, 16])
def test_parts_share_the_sources_of_a_periodic_blend(
    period: int, num_parts: int
) -> None:
    for groups in range(1, 20):
        check_parts(np.arange(num_parts * groups) % period, num_parts)


@pytest.mark.parametrize("weights", [(1, 1), (7, 3), (8, 1, 1), (5, 2, 2, 1)])
@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_parts_share_the_sources_of_a_curriculum(
    weights: Sequence[float], num_parts: int
) -> None:
    sampler = blended(weights, Phase(6, 32, 9)).sampler(seed=5)
    for step in range(6):
        check_parts(sampler.windows(step).source, num_parts)


def test_rows_of_one_source_keep_their_order() -> None:
    assert rows_of_parts(np.zeros(8, np.int32), 4).tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_every_slice_of_rows_gets_its_slice_of_the_order() -> None:
    sampler = blended((1, 1, 1), Phase(3, 24, 9)).sampler(seed=5)
    feed = FedRows(sampler, 4)

    for step in range(3):
        pieces = [feed.rows(step, slice(first, first + 6)) for first in (0, 6, 12, 18)]

        expected = deal_rows(sampler.windows(step).source, 4)
        assert np.concatenate([piece.order for piece in pieces]).tolist() == list(
            expected
        )


@pytest.mark.parametrize("devices", [1, 4])
def test_every_part_of_an_update_holds_the_blend(tmp_path: Path, devices: int) -> None:
    def share(model: Any, batch: Any) -> Any:
        # A part of one source has the share 0 or 1, so the mean square is 0.5.
        ones = batch[:, 0].mean()
        return {"loss": ones + nothing_of(model), "square": ones**2}

    zeros, ones = Roxxel(tmp_path / "zeros_*.rox"), Roxxel(tmp_path / "ones_*.rox")
    zeros.write([np.zeros(4000, int)], vocab_size=2)
    ones.write([np.ones(4000, int)], vocab_size=2)
    phases = [Phase(4, 16, 9, {"self": 1, "ones": 1})]
    trainer(
        tmp_path,
        curriculum=Curriculum(zeros, phases, {"ones": ones}),
        loss_fn=share,
        grad_accum_steps=2,
        log_every=1,
        mesh=mesh_of(devices),
    ).run()

    assert [(row["loss"], row["square"]) for row in rows(tmp_path)] == [(0.5, 0.25)] * 4


def blended(weights: Sequence[float], phase: Phase) -> Curriculum:
    """Return a curriculum of one phase that blends as many sources."""
    names = ["self", *(f"s{number}" for number in range(1, len(weights)))]
    blend = dict(zip(names, weights, strict=True))
    phase = Phase(phase.steps, phase.batch_size, phase.seq_len, blend)
    others = {name: PositionReader(100_000) for name in names[1:]}
    return Curriculum(PositionReader(100_000), [phase], others)
