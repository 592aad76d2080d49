"""A keyed bijection of [0, n), computed for any element alone and never stored.

A generalised Feistel network over a domain `a * 2**k >= n`, with `2**k` about
`sqrt(n)`: an element is split into `left` in `[0, a)` and `right` in `[0, 2**k)`, and
a keyed hash of each half is added to the other in turn. An image outside `[0, n)` is
sent through the network again until it falls inside (cycle walking: Black and Rogaway,
Ciphers with Arbitrary Finite Domains, 2002). The domain exceeds n by less than
`sqrt(n)`, so few elements need it. The network has four pairs of half-rounds, because
with three the statistics for n <= 100 are visibly not uniform. Sets of up to 48
elements are ordered by their keyed hashes instead.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._order.plain_bijection import (
    BITS_64,
    GOLDEN,
    HALF_ROUNDS,
    MULTIPLY_1,
    MULTIPLY_2,
    SMALL,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_SIZE = 2**60
"""The largest n. Both halves stay below 2**32, so products fit 64 bits."""

# Rows of the parameter table, which has a column for each group of elements.
_N, _A, _K, _MASK, _FIRST_KEY = range(5)

_U64: TypeAlias = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(GOLDEN)
_MULTIPLY_1 = np.uint64(MULTIPLY_1)
_MULTIPLY_2 = np.uint64(MULTIPLY_2)
_SHIFT_27 = np.uint64(27)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)
_SHIFT_32 = np.uint64(32)
_ROUND_STEPS = np.arange(1, HALF_ROUNDS + 1, dtype=np.uint64)[:, None] * _GOLDEN
_SMALL_STEPS = np.arange(1, SMALL + 1, dtype=np.uint64) * _GOLDEN


def permute(index: npt.ArrayLike, n: int, key: int) -> npt.NDArray[np.int64]:
    """Return where a keyed bijection of `[0, n)` sends each index.

    Args:
        index: Integers in `[0, n)`, any shape.
        n: Size of the set, `0 <= n <= 2**60`.
        key: Selects the bijection, `0 <= key < 2**64`; see `make_key`.

    Returns:
        int64 array of the shape of `index`; different indices have different images.

    Raises:
        IndexError: An index is outside `[0, n)`.
        TypeError: `index` does not hold integers.
        ValueError: `n` or `key` is out of range.
    """
    return Permutation(n, key)(index)


def make_key(*parts: int | str) -> int:
    """Return a key in `[0, 2**64)` that depends on every part.

    The key is the same on every machine and in every process.

    Args:
        *parts: Integers of any size, and strings; `1` and `"1"` are different parts.

    Raises:
        TypeError: A part is neither an integer nor a string.
    """
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += f"s{len(part)}:{part}"
        else:
            text += f"i{operator.index(part)}:"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


class Permutation:
    """One keyed bijection of `[0, n)` and its inverse.

    Args:
        n: Size of the set, `0 <= n <= 2**60`.
        key: Selects the bijection, `0 <= key < 2**64`; see `make_key`.

    Raises:
        ValueError: `n` or `key` is out of range.
    """

    __slots__ = ("_groups", "_tables", "key", "n")

    def __init__(self, n: int, key: int) -> None:
        self.n = operator.index(n)
        self.key = operator.index(key)
        if not 0 <= self.n <= MAX_SIZE:
            raise ValueError(f"n must be in [0, 2**60], got {n}")
        if not 0 <= self.key <= BITS_64:
            raise ValueError(
                f"key must be in [0, 2**64), got {key}; make one with make_key"
            )
        keys = np.array([self.key], np.uint64)
        self._groups = _Groups.of([self.n], keys)
        self._tables = _small_tables([self.n], keys) if self.n <= SMALL else None

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Permutation(n={self.n}, key={self.key})"

    def __call__(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the image of each index; see `permute`."""
        flat, shape = self._checked(index)
        if self._tables is not None:
            return self._tables[0][0, flat].reshape(shape)
        return _walk(flat, self._groups, _forward).astype(np.int64).reshape(shape)

    def inverse(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the index of each image: `p.inverse(p(i)) == i`."""
        flat, shape = self._checked(index)
        if self._tables is not None:
            return self._tables[1][0, flat].reshape(shape)
        return _walk(flat, self._groups, _backward).astype(np.int64).reshape(shape)

    def _checked(self, index: npt.ArrayLike) -> tuple[_U64, tuple[int, ...]]:
        array = np.asarray(index)
        if array.size == 0:
            return np.empty(0, np.uint64), array.shape
        if array.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, got dtype {array.dtype}")
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.n:
            wrong = low if low < 0 else high
            raise IndexError(f"index {wrong} is outside [0, {self.n})")
        return array.astype(np.uint64).ravel(), array.shape


def permute_groups(
    index: _U64, counts: npt.NDArray[np.int64], sizes: Sequence[int], keys: _U64
) -> _U64:
    """Permute groups of indices, each group with its own size and key, in one call.

    Args:
        index: uint64 indices, group after group, each below its group's n; unchecked.
        counts: Number of indices in each group, shape `(groups,)`.
        sizes: n of each group.
        keys: uint64 key of each group, shape `(groups,)`.

    Returns:
        uint64 array of the shape of `index`; each group equals what `permute` returns.
    """
    if min(sizes) > SMALL:
        return _walk(index, _Groups.of(sizes, keys, counts), _forward)
    small = np.array(sizes) <= SMALL
    of_small = np.repeat(small, counts)
    out = np.empty_like(index)
    rank, _ = _small_tables(
        [n for n, is_small in zip(sizes, small, strict=True) if is_small], keys[small]
    )
    row = np.repeat(np.arange(len(rank)), counts[small])
    out[of_small] = rank[row, index[of_small]]
    if not small.all():
        large = ~small
        of_large = [n for n, is_small in zip(sizes, small, strict=True) if not is_small]
        groups = _Groups.of(of_large, keys[large], counts[large])
        out[~of_small] = _walk(index[~of_small], groups, _forward)
    return out


def mix_keys(base: _U64, *parts: _U64) -> _U64:
    """Return keys that depend elementwise on `base` and on every part."""
    keys = base
    for part in parts:
        keys = _mix((keys ^ part) + _GOLDEN)
    return keys


def _mix(z: _U64) -> _U64:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    z = (z ^ (z >> _SHIFT_30)) * _MULTIPLY_1
    z = (z ^ (z >> _SHIFT_27)) * _MULTIPLY_2
    return z ^ (z >> _SHIFT_31)


class _Groups:
    """The parameters of the network for the elements of several groups.

    Args:
        parameters: n, a, k, mask and the round keys, shape `(12, groups)`.
        counts: Number of elements in each group; None if every element is a group of
            its own, or if all belong to one group.
    """

    __slots__ = ("_counts", "_parameters")

    def __init__(self, parameters: _U64, counts: npt.NDArray[np.int64] | None) -> None:
        self._parameters = parameters
        self._counts = counts

    @classmethod
    def of(
        cls,
        sizes: Sequence[int],
        keys: _U64,
        counts: npt.NDArray[np.int64] | None = None,
    ) -> _Groups:
        """Return the parameters of groups.

        Args:
            sizes: n of each group.
            keys: uint64 key of each group, shape `(groups,)`.
            counts: Number of elements in each group; not needed for one group.
        """
        halves = [(max(n, 1).bit_length() - 1) // 2 for n in sizes]
        domains = [
            (n, -(-n >> k), k, (1 << k) - 1) for n, k in zip(sizes, halves, strict=True)
        ]
        parameters = np.empty((_FIRST_KEY + HALF_ROUNDS, len(sizes)), np.uint64)
        parameters[:_FIRST_KEY] = np.array(domains, np.uint64).T
        parameters[_FIRST_KEY:] = _mix(keys + _ROUND_STEPS)
        return cls(parameters, counts if len(sizes) > 1 else None)

    def row(self, parameter: int) -> _U64:
        """Return one parameter for every element; one value if all share it."""
        row = self._parameters[parameter]
        return row if self._counts is None else np.repeat(row, self._counts)

    def chosen(self, elements: npt.NDArray[np.int64]) -> _Groups:
        """Return the parameters of the elements with these indices."""
        if self._parameters.shape[1] == 1:
            return self
        if self._counts is not None:
            stops = np.cumsum(self._counts)
            elements = np.searchsorted(stops, elements, side="right")
        return _Groups(self._parameters[:, elements], None)


def _small_tables(
    sizes: Sequence[int], keys: _U64
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bijection of each small group, and its inverse, as rows of 48."""
    hashes = _mix(keys[:, None] + _SMALL_STEPS)
    outside = np.arange(SMALL) >= np.array(sizes)[:, None]
    hashes[outside] = BITS_64
    order = np.argsort(hashes, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(SMALL)[None, :], axis=1)
    return rank, order


def _hash(x: _U64, key: _U64) -> _U64:
    """Return 32 bits that depend on `x` and `key`."""
    x = (x + key) * _MULTIPLY_1
    return ((x ^ (x >> _SHIFT_32)) * _MULTIPLY_2) >> _SHIFT_32


def _forward(x: _U64, groups: _Groups) -> _U64:
    a, k, mask = groups.row(_A), groups.row(_K), groups.row(_MASK)
    left, right = x >> k, x & mask
    for i in range(_FIRST_KEY, _FIRST_KEY + HALF_ROUNDS, 2):
        left = left + ((_hash(right, groups.row(i)) * a) >> _SHIFT_32)
        # Modulo `a`: where left < a, the unsigned difference wraps to a huge number.
        left = np.minimum(left, left - a)
        right = (right + _hash(left, groups.row(i + 1))) & mask
    return (left << k) | right


def _backward(x: _U64, groups: _Groups) -> _U64:
    a, k, mask = groups.row(_A), groups.row(_K), groups.row(_MASK)
    left, right = x >> k, x & mask
    for i in range(_FIRST_KEY + HALF_ROUNDS - 2, _FIRST_KEY - 1, -2):
        right = (right - _hash(left, groups.row(i + 1))) & mask
        left = left - ((_hash(right, groups.row(i)) * a) >> _SHIFT_32)
        # Modulo `a`: a negative difference has wrapped to a huge number.
        left = np.minimum(left, left + a)
    return (left << k) | right


def _walk(x: _U64, groups: _Groups, apply: Callable[[_U64, _Groups], _U64]) -> _U64:
    """Apply the network until the image of every element is inside its `[0, n)`."""
    y = apply(x, groups)
    outside = elements = np.flatnonzero(y >= groups.row(_N))
    while outside.size:
        groups = groups.chosen(outside)
        again = apply(y[elements], groups)
        y[elements] = again
        outside = np.flatnonzero(again >= groups.row(_N))
        elements = elements[outside]
    return y
