"""Laws of the keyed bijection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from roxxel_curriculum import Permutation, make_key, permute
from roxxel_curriculum._order.bijection import mix_keys, permute_groups

from .plain_bijection import mix_plainly, permute_plainly

KEYS = st.integers(0, 2**64 - 1)


@given(n=st.integers(0, 3000), key=KEYS)
def test_every_index_is_hit_exactly_once(n: int, key: int) -> None:
    image = permute(np.arange(n), n, key)

    assert np.array_equal(np.sort(image), np.arange(n))


@given(n=st.integers(1, 2**60), key=KEYS, data=st.data())
def test_the_inverse_undoes_it_for_any_size(
    n: int, key: int, data: st.DataObject
) -> None:
    index = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    permutation = Permutation(n, key)

    image = permutation(index)

    assert np.all((image >= 0) & (image < n))
    assert permutation.inverse(image).tolist() == index
    assert permutation(permutation.inverse(index)).tolist() == index


@given(
    sizes=st.lists(st.integers(1, 300) | st.integers(1, 2**50), min_size=1, max_size=8),
    data=st.data(),
)
def test_groups_in_one_call_equal_groups_alone(
    sizes: list[int], data: st.DataObject
) -> None:
    keys = [data.draw(KEYS) for _ in sizes]
    groups = [
        data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9))
        for n in sizes
    ]

    together = permute_groups(
        np.array([i for group in groups for i in group], np.uint64),
        np.array([len(group) for group in groups]),
        sizes,
        np.array(keys, np.uint64),
    )

    alone = [
        permute(group, n, key)
        for group, n, key in zip(groups, sizes, keys, strict=True)
    ]
    assert together.tolist() == np.concatenate(alone).tolist()


@given(n=st.integers(1, 300) | st.integers(1, 2**60), key=KEYS, data=st.data())
def test_plain_integers_give_the_same_as_arrays(
    n: int, key: int, data: st.DataObject
) -> None:
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=9))
    parts = data.draw(st.lists(st.integers(0, 2**64 - 1), max_size=4))

    plain = permute_plainly(indices, n, key)
    mixed = mix_plainly(key, *parts)

    assert plain == permute(indices, n, key).tolist()
    arrays = [np.array([part], np.uint64) for part in (key, *parts)]
    assert [mixed] == mix_keys(*arrays).tolist()


def test_shape_is_kept_and_empty_is_empty() -> None:
    assert permute([[0, 1], [2, 3]], 4, 1).shape == (2, 2)
    assert permute([], 0, 1).shape == (0,)


def test_an_index_outside_is_named() -> None:
    with pytest.raises(IndexError, match=r"index 7 is outside \[0, 7\)"):
        permute([0, 7], 7, 1)
    with pytest.raises(IndexError, match=r"index -1 is outside"):
        permute([-1], 7, 1)


def test_wrong_types_and_ranges_are_refused() -> None:
    with pytest.raises(TypeError, match="integers"):
        permute([0.5], 7, 1)
    with pytest.raises(ValueError, match=r"n must be in \[0, 2\*\*60\]"):
        Permutation(2**60 + 1, 1)
    with pytest.raises(ValueError, match="make_key"):
        Permutation(5, -1)


def test_keys_tell_their_parts_apart() -> None:
    parts = [(1,), ("1",), (1, 1), (11,), ("1", "1"), ("11",), (-1,), (2**70,)]

    assert len({make_key(*part) for part in parts}) == len(parts)
    wrong: Any = 1.5
    with pytest.raises(TypeError, match="float"):
        make_key(wrong)
