"""A curriculum's sampler on its way to the devices."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from roxxel_curriculum import Curriculum, Phase
from roxxel_curriculum.testing import PositionReader
from roxxel_loader import RowSource, device_stream

from .helpers import make_mesh, sharded


def make_curriculum() -> Curriculum:
    phases = [
        Phase(6, 16, 9, {"self": 0.75, "code": 0.25}),
        Phase(4, 2, 33),
    ]
    return Curriculum(
        PositionReader(20_000), phases, {"code": PositionReader(9_000, "code")}
    )


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_samplers_batches_arrive_through_all_phases(workers: int) -> None:
    sampler = make_curriculum().sampler(7)
    mesh = make_mesh((8,), ("data",))

    def sharding(shape: tuple[int, ...]) -> Sharding:
        axis = "data" if shape[0] % 8 == 0 else None
        return NamedSharding(mesh, PartitionSpec(axis, None))

    assert isinstance(sampler, RowSource)
    with device_stream(
        sampler, 0, sampler.total_steps, sharding, workers=workers
    ) as stream:
        for step, batch in enumerate(stream):
            assert batch.dtype == np.int32
            assert np.array_equal(np.asarray(batch), sampler.batch(step))


def test_columns_and_fields_of_a_sampler_may_be_split() -> None:
    fields = ("tokens", "segment_ids", "positions")
    sampler = make_curriculum().sampler(7, fields=fields)
    # Rows over four devices, columns over one: each field is an array of its own.
    stream = device_stream(sampler, 0, 3, sharded((4, 1), "a", "b"))

    for step, batch in enumerate(stream):
        expected = sampler.batch(step)
        assert set(batch) == set(expected)
        for name, values in expected.items():
            assert np.array_equal(np.asarray(batch[name]), values)
