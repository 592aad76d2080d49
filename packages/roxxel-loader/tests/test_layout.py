from __future__ import annotations

import sys
from math import prod
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_loader import device_stream
from roxxel_loader._buffers import (
    ALIAS_BYTES,
    ALIGNMENT,
    aligned_empty,
    is_unshared,
    to_hand_over,
)
from roxxel_loader.sharding._layout import make_layout
from roxxel_loader.sharding._transfer import place

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
    for (top, bottom), (left, right) in layout.pieces:
        needed[top:bottom, left:right] = 1
    assert (seen == needed).all()


def test_neighbouring_pieces_are_one_read() -> None:
    layout = make_layout((16, 24), sharded((4, 2), "a", "b"))

    assert len(layout.pieces) == 8
    assert layout.reads == (((0, 16), (0, 24)),)


@settings(max_examples=30)
@given(spec=st.sampled_from(SPECS), mesh=st.sampled_from([(4, 2), (2, 4), (8, 1)]))
def test_placed_values_are_where_the_sharding_says(
    spec: tuple[object, ...], mesh: tuple[int, int]
) -> None:
    sharding = sharded(mesh, *spec)
    values = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)
    layout = make_layout(values.shape, sharding)

    array = place(layout, [values[tuple(slice(*s) for s in r)] for r in layout.reads])

    assert array.sharding == sharding
    assert (np.asarray(array) == values).all()
    for shard in array.addressable_shards:
        assert (np.asarray(shard.data) == values[shard.index]).all()


def test_a_placed_array_does_not_see_later_writes() -> None:
    values = aligned_empty((64, 64), np.dtype(np.int32))
    values[...] = 1
    layout = make_layout(values.shape, sharded((1,), "a"))

    array = place(layout, [values])
    values[...] = 2

    assert (np.asarray(array) == 1).all()


@given(
    shape=st.lists(st.integers(0, 9), max_size=3),
    kind=st.sampled_from(["u1", "i2", "f4", "i8", "?"]),
)
def test_buffers_start_on_the_boundary(shape: list[int], kind: str) -> None:
    buffer = aligned_empty(tuple(shape), np.dtype(kind))

    assert buffer.ctypes.data % ALIGNMENT == 0
    assert buffer.size == prod(shape)
    assert buffer.flags.c_contiguous


def test_memory_that_somebody_holds_is_known() -> None:
    held = np.zeros((4, 4))
    view = np.zeros((4, 4))[1:]

    assert is_unshared([np.zeros((4, 4))], 0)
    assert is_unshared([np.arange(16).reshape(4, 4)], 0)
    assert not is_unshared([held], 0)
    assert not is_unshared([held[1:]], 0)
    assert not is_unshared([view], 0)
    assert not is_unshared([np.frombuffer(bytearray(8), np.uint8)], 0)
    lent = [np.zeros(4)]
    with memoryview(lent[0]):  # pyright: ignore[reportArgumentType] - it is one
        assert not is_unshared(lent, 0)
    assert is_unshared(lent, 0)


def test_a_batch_that_does_not_divide_names_the_shape() -> None:
    with pytest.raises(ValueError, match=r"shape \(12, 5\).*choose sizes that divide"):
        make_layout((12, 5), sharded((8,), "a"))


def test_an_array_no_device_holds_is_named() -> None:
    layout = make_layout((2,), sharded((1,), "a"))

    with pytest.raises(TypeError, match=r"batch\['name'\] has dtype object"):
        place(layout, [np.array(["x", "y"], object)], "batch['name']")


def test_scalars_can_be_placed() -> None:
    mesh = make_mesh((8,), ("a",))
    layout = make_layout((), NamedSharding(mesh, PartitionSpec()))

    array = place(layout, [np.asarray(7, np.int32)])

    assert int(array) == 7
    assert len(array.sharding.device_set) == len(jax.devices())


def test_a_spec_is_cut_to_the_axes_of_the_array() -> None:
    layout = make_layout((8,), sharded((8,), "a", None))

    assert layout.sharding == sharded((8,), "a")
    with pytest.raises(ValueError, match="array of 1 axes cannot be placed"):
        make_layout((8,), sharded((8,), None, "a"))


@pytest.mark.parametrize("offset", [0, 1, 3])
def test_large_arrays_go_to_the_cpu_on_the_boundary(offset: int) -> None:
    """Any other would be copied late, by another thread."""
    large = ALIAS_BYTES // 4
    raw = aligned_empty((large + offset,), np.dtype(np.int32))
    arrays = [raw[offset:]]
    del raw

    handed_over = to_hand_over(arrays, 0, ALIAS_BYTES)

    assert handed_over.ctypes.data % ALIGNMENT == 0
    assert np.array_equal(handed_over, arrays[0])
    assert to_hand_over([np.zeros(large)], 0, sys.maxsize).flags.owndata


def test_small_arrays_that_nobody_holds_go_as_they_are() -> None:
    arrays = [np.zeros((4, 4), np.int32)]

    assert to_hand_over(arrays, 0, ALIAS_BYTES) is arrays[0]


@pytest.mark.parametrize("wrong", [make_mesh((8,), ("data",)), "data", lambda _: 3])
def test_what_is_no_sharding_is_named(wrong: Any) -> None:
    with pytest.raises(TypeError, match="batch_sharding"):
        next(device_stream(lambda _: np.zeros((8, 2), np.int32), 0, 1, wrong))
