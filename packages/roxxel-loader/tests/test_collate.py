from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from roxxel_loader import Dataloader


class Tail:
    """Items from the index `first` on; none before."""

    def __init__(self, items: list[Any], first: int) -> None:
        self._items = items
        self._first = first

    def __len__(self) -> int:
        return self._first + len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._items[index - self._first]


def collate(items: list[Any], first: int = 0) -> Any:
    """Return the batch of items whose indices begin at `first`, a multiple."""
    step, left_over = divmod(first, len(items))
    assert left_over == 0
    return Dataloader(Tail(items, first), len(items), workers=0).batch(step)


class Pair(NamedTuple):
    left: Any
    right: Any


@given(
    hnp.arrays(
        st.sampled_from([np.int32, np.float32, np.uint8, np.bool_]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5),
    )
)
def test_arrays_are_stacked_along_a_new_axis(batch: np.ndarray) -> None:
    made = collate(list(batch))

    assert made.dtype == batch.dtype
    assert made.shape == batch.shape
    assert np.array_equal(made, batch, equal_nan=batch.dtype.kind == "f")


@pytest.mark.parametrize(
    ("items", "dtype"),
    [
        ([1, 2, 3], np.int64),
        ([1.0, 2.5], np.float64),
        ([True, False], np.bool_),
        ([np.float32(1), np.float32(2)], np.float32),
        ([np.asarray(1, np.int8), np.asarray(2, np.int8)], np.int8),
        ([jnp.int32(1), jnp.int32(4)], np.int32),
        (["a", "bc"], object),
        ([b"a\0", b""], object),
    ],
)
def test_leaves_become_arrays(items: list[Any], dtype: Any) -> None:
    batch = collate(items)

    assert batch.dtype == dtype
    assert batch.tolist() == [getattr(i, "tolist", lambda i=i: i)() for i in items]


def test_structure_is_kept() -> None:
    items = [
        {"x": np.full(3, n), "y": Pair(n, str(n)), "z": [n, (n, -n)]} for n in range(4)
    ]

    batch = collate(items)

    assert batch["x"].shape == (4, 3)
    assert isinstance(batch["y"], Pair)
    assert batch["y"].left.tolist() == [0, 1, 2, 3]
    assert batch["y"].right.tolist() == ["0", "1", "2", "3"]
    assert batch["z"][1][0].tolist() == [0, 1, 2, 3]
    assert batch["z"][1][1].tolist() == [0, -1, -2, -3]


@pytest.mark.parametrize(
    ("items", "where"),
    [
        ([None, None], "item 8 is None"),
        ([1, None], "item 9 is None"),
        ([{"label": None}] * 2, r"item 8\['label'\] is None"),
        ([{"x": 1, "label": 2}, {"x": 1, "label": None}], r"item 9\['label'\] is None"),
        ([(1, None), (2, 3)], r"item 8\[1\] is None"),
        ([Pair(1, [2, None])] * 2, r"item 8\.right\[1\] is None"),
        ([[None, None]] * 2, r"item 8\[0\] is None"),
    ],
)
def test_none_in_an_item_is_refused_with_its_path(items: list[Any], where: str) -> None:
    remedy = r".*; drop such items with .filter\(...\), replace None in .map\(...\), or"
    with pytest.raises(TypeError, match=where + remedy):
        collate(items, 8)


def test_ragged_shapes_name_the_item() -> None:
    items = [{"x": np.zeros(3)}, {"x": np.zeros(3)}, {"x": np.zeros(4)}]

    with pytest.raises(
        ValueError, match=r"item 17\['x'\] has shape \(4,\) but item 15\['x'\] has \(3,"
    ):
        collate(items, 15)


@pytest.mark.parametrize("kind", [np.float64, object])
def test_ragged_shapes_of_equal_total_size_are_found(kind: type) -> None:
    items = [np.zeros(3, kind), np.zeros(2, kind), np.zeros(4, kind)]

    with pytest.raises(
        ValueError, match=r"item 1 has shape \(2,\) but item 0 has \(3,"
    ):
        collate(items)


def test_arrays_of_objects_are_stacked_whole() -> None:
    items = [np.array([[1], "ab"], object), np.array([[2, 3], None], object)]

    assert collate(items).tolist() == [[[1], "ab"], [[2, 3], None]]


def test_different_structures_name_the_item() -> None:
    with pytest.raises(ValueError, match="item 9 has the pytree structure"):
        collate([{"x": 1}, {"y": 1}], 8)


@pytest.mark.parametrize("odd", [object(), "text", {1, 2}])
def test_what_does_not_stack_names_the_item_and_its_type(odd: Any) -> None:
    name = type(odd).__name__
    with pytest.raises(TypeError, match=f"item 5 is of type {name}, .* item 4 of type"):
        collate([1, odd], 4)


def test_the_first_item_that_never_stacks_is_named() -> None:
    with pytest.raises(TypeError, match="item 4 is of type object, which does not"):
        collate([object(), 1], 4)
