"""Laws of the blend: proportion of every prefix, exact counts and inverses."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from roxxel_curriculum import Phase
from roxxel_curriculum._order.blend import Blend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIBONACCI = [1, 1]
while len(FIBONACCI) < 40:
    FIBONACCI.append(FIBONACCI[-1] + FIBONACCI[-2])

HARD = {
    "half and 9": [0.5] + [0.5 / 9] * 9,
    "half and 99": [0.5] + [0.5 / 99] * 99,
    "nine tenths and 9": [0.9] + [0.1 / 9] * 9,
    "nine tenths and 99": [0.9] + [0.1 / 99] * 99,
    "two equal": [1, 1],
    "hundred equal": [1] * 100,
    "powers of two": [2.0**-i for i in range(30)],
    "Fibonacci": FIBONACCI[:40],
    "tiny": [1, 1e-9],
    "tiny among many": [1, *[10.0**-i for i in range(10)]],
}

weight_lists = st.one_of(
    st.lists(st.floats(1e-9, 1), min_size=1, max_size=100),
    st.lists(st.integers(1, 10**9), min_size=2, max_size=100),
    st.sampled_from(sorted(HARD)).map(HARD.__getitem__),
)


def integer_weights(weights: Mapping[str, float]) -> dict[str, int]:
    return Phase(1, 1, 1, weights).integer_weights


def named(weights: Sequence[float]) -> dict[str, int]:
    return integer_weights({f"s{i:03}": w for i, w in enumerate(weights)})


def assert_within_three(weights: dict[str, int], num_samples: int) -> None:
    total = sum(weights.values())
    counts = Blend(weights).counts(num_samples)
    assert sum(counts.values()) == num_samples
    for name, weight in weights.items():
        assert abs(counts[name] - Fraction(num_samples * weight, total)) <= 3


@given(weights=weight_lists, num_samples=st.integers(0, 10**14))
def test_every_prefix_is_within_three_samples_of_its_share(
    weights: list[float], num_samples: int
) -> None:
    assert_within_three(named(weights), num_samples)


@pytest.mark.parametrize("case", sorted(HARD))
def test_every_prefix_of_a_hard_case_is_within_three(case: str) -> None:
    weights = named(HARD[case])
    total = sum(weights.values())
    given_so_far = dict.fromkeys(weights, 0)
    order = np.empty(2000, object)
    for name, offsets, _ in Blend(weights).deal(0, 2000):
        order[offsets] = name

    for done, name in enumerate(order, 1):
        given_so_far[name] += 1
        assert all(
            abs(given_so_far[other] * total - done * weight) <= 3 * total
            for other, weight in weights.items()
        )
    for num_samples in (10**6 + 1, 2**31, 10**10 + 7, 10**14):
        assert_within_three(weights, num_samples)


@given(weights=weight_lists, rank=st.integers(0, 10**14), data=st.data())
def test_the_index_of_a_sample_is_the_exact_inverse_of_the_counts(
    weights: list[float], rank: int, data: st.DataObject
) -> None:
    blend = Blend(named(weights))
    name = data.draw(st.sampled_from(blend.sources))

    index = blend.sample_index(name, rank)

    assert blend.counts(index)[name] == rank
    assert blend.counts(index + 1)[name] == rank + 1


@given(
    weights=weight_lists,
    first=st.integers(0, 10**14),
    num_samples=st.integers(0, 400),
)
@example(weights=[0.9] + [0.1 / 99] * 99, first=10**14, num_samples=2**15)
def test_dealing_a_stretch_agrees_with_the_counts_around_it(
    weights: list[float], first: int, num_samples: int
) -> None:
    blend = Blend(named(weights))
    before = blend.counts(first)
    after = blend.counts(first + num_samples)

    portions = blend.deal(first, num_samples)

    offsets = np.concatenate([part.offsets for part in portions] or [np.empty(0, int)])
    assert np.array_equal(np.sort(offsets), np.arange(num_samples))
    for part in portions:
        assert part.given == before[part.source]
        assert part.given + part.offsets.size == after[part.source]
        assert np.all(np.diff(part.offsets) > 0)
        index = blend.sample_index(part.source, part.given)
        assert index == first + part.offsets[0]


def test_the_order_of_names_does_not_matter() -> None:
    weights = {"b": 2, "a": 1, "c": 1, "d": 4}
    backwards = dict(reversed(weights.items()))

    assert Blend(weights).counts(12345) == Blend(backwards).counts(12345)


def test_weights_of_one_ratio_are_the_same_blend() -> None:
    assert integer_weights({"a": 0.3, "b": 0.7}) == {"a": 3, "b": 7}
    assert integer_weights({"a": 1, "b": 1}) == integer_weights({"a": 0.5, "b": 0.5})
    assert integer_weights({"a": 0.1, "b": 0.2, "c": 0}) == {"a": 1, "b": 2}
    assert integer_weights({"a": 1e-9, "b": 1}) == {"a": 1, "b": 10**9}
