from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_loader import device_stream
from roxxel_loader.sharding._global_arrays import to_global_array
from roxxel_loader.sharding._layout import make_layout

from .helpers import make_mesh, sharded

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


@settings(max_examples=30)
@given(
    mesh=st.sampled_from([(1, 1), (8, 1), (4, 2), (2, 4), (2, 2), (1, 8)]),
    spec=st.sampled_from(SPECS),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
)
def test_reads_hold_every_piece_once(
    mesh: tuple[int, int], spec: tuple[object, ...], rows: int, columns: int
) -> None:
    layout = make_layout((8 * rows, 8 * columns), sharded(mesh, *spec))

    seen = np.zeros(layout.shape, int)
    for (top, bottom), (left, right) in layout.reads:
        seen[top:bottom, left:right] += 1
    needed = np.zeros(layout.shape, int)
    for (top, bottom), (left, right) in layout.cuts:
        needed[top:bottom, left:right] = 1
    assert (seen == needed).all()


def test_neighbouring_pieces_are_one_read() -> None:
    layout = make_layout((16, 24), sharded((4, 2), "a", "b"))

    assert len(layout.cuts) == 8
    assert layout.reads == (((0, 16), (0, 24)),)


@settings(max_examples=30)
@given(spec=st.sampled_from(SPECS), mesh=st.sampled_from([(4, 2), (2, 4), (8, 1)]))
def test_placed_values_are_where_the_sharding_says(
    spec: tuple[object, ...], mesh: tuple[int, int]
) -> None:
    sharding = sharded(mesh, *spec)
    values = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)
    layout = make_layout(values.shape, sharding)

    parts = [values[tuple(slice(*s) for s in r)] for r in layout.reads]
    array = to_global_array(layout, parts, "batch")

    assert array.sharding == sharding
    assert (np.asarray(array) == values).all()
    for shard in array.addressable_shards:
        assert (np.asarray(shard.data) == values[shard.index]).all()


def test_a_placed_array_does_not_see_later_writes() -> None:
    values = np.ones((64, 64), np.int32)
    layout = make_layout(values.shape, sharded((1,), "a"))

    array = to_global_array(layout, [values], "batch")
    values[...] = 2

    assert (np.asarray(array) == 1).all()


def test_a_batch_that_does_not_divide_names_the_shape() -> None:
    with pytest.raises(ValueError, match=r"shape \(12, 5\).*choose sizes that divide"):
        make_layout((12, 5), sharded((8,), "a"))


def test_an_array_no_device_holds_is_named() -> None:
    layout = make_layout((2,), sharded((1,), "a"))

    with pytest.raises(TypeError, match=r"batch\['name'\] has dtype object"):
        to_global_array(layout, [np.array(["x", "y"], object)], "batch['name']")


def test_scalars_can_be_placed() -> None:
    mesh = make_mesh((8,), ("a",))
    layout = make_layout((), NamedSharding(mesh, PartitionSpec()))

    array = to_global_array(layout, [np.asarray(7, np.int32)], "batch")

    assert int(array) == 7
    assert len(array.sharding.device_set) == len(jax.devices())


def test_a_spec_is_cut_to_the_axes_of_the_array() -> None:
    layout = make_layout((8,), sharded((8,), "a", None))

    assert layout.sharding == sharded((8,), "a")
    with pytest.raises(ValueError, match="array of 1 axes does not fit"):
        make_layout((8,), sharded((8,), None, "a"))


@pytest.mark.parametrize("wrong", [make_mesh((8,), ("data",)), "data", lambda _: 3])
def test_what_is_no_sharding_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match="batch_sharding"):
        next(device_stream(lambda _: np.zeros((8, 2), np.int32), 0, 1, wrong))
