"""Which values a process reads, and where they are on the devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_loader import device_stream

from .helpers import CountingSource, make_mesh, sharded

SPECS = [
    (),
    ("a",),
    ("b",),
    (None, "a"),
    ("a", "b"),
    ("b", "a"),
    (("a", "b"),),
    (None, ("a", "b")),
]


def placed(values: np.ndarray, sharding: Any) -> jax.Array:
    """Return the values as the batch of a step."""
    return next(device_stream(lambda _: values, 0, 1, sharding, workers=0))


@settings(max_examples=30, deadline=None)
@given(
    mesh=st.sampled_from([(1, 1), (8, 1), (4, 2), (2, 4), (2, 2), (1, 8)]),
    spec=st.sampled_from(SPECS),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
)
def test_every_value_is_read_once_and_is_where_the_sharding_says(
    mesh: tuple[int, int], spec: tuple[object, ...], rows: int, columns: int
) -> None:
    sharding = sharded(mesh, *spec)
    source = CountingSource((8 * rows, 8 * columns))
    values = source.whole(3)

    array = next(device_stream(source, 3, 4, sharding, workers=0))

    assert source.num_items == values.size
    assert array.sharding == sharding
    for shard in array.addressable_shards:
        assert (np.asarray(shard.data) == values[shard.index]).all()


def test_a_placed_array_does_not_see_later_writes() -> None:
    values = np.ones((64, 64), np.int32)

    array = placed(values, sharded((1,), "a"))
    values[...] = 2

    assert (np.asarray(array) == 1).all()


def test_a_batch_that_does_not_divide_names_the_shape() -> None:
    with pytest.raises(ValueError, match=r"shape \(12, 5\).*choose sizes that divide"):
        placed(np.zeros((12, 5), np.int32), sharded((8,), "a"))


def test_scalars_can_be_placed() -> None:
    mesh = make_mesh((8,), ("a",))

    array = placed(np.asarray(7, np.int32), NamedSharding(mesh, PartitionSpec()))

    assert int(array) == 7
    assert len(array.sharding.device_set) == len(jax.devices())


def test_a_spec_is_cut_to_the_axes_of_the_array() -> None:
    values = np.zeros(8, np.int32)

    assert placed(values, sharded((8,), "a", None)).sharding == sharded((8,), "a")
    with pytest.raises(ValueError, match="array of 1 axes does not fit"):
        placed(values, sharded((8,), None, "a"))


@pytest.mark.parametrize("wrong", [make_mesh((8,), ("data",)), "data", lambda _: 3])
def test_what_is_not_a_sharding_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match="batch_sharding"):
        placed(np.zeros((8, 2), np.int32), wrong)
