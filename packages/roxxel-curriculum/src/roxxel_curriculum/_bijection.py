"""A keyed bijection of [0, n), computed for any element alone and never stored.

A generalised Feistel network over a domain `a * 2**k >= n`, with `2**k` about
`sqrt(n)`: an element is split into `left` in `[0, a)` and `right` in `[0, 2**k)`, and
each half in turn is moved by a keyed hash of the other. What falls outside `[0, n)` is
walked on along its cycle (Black and Rogaway, Ciphers with Arbitrary Finite Domains,
2002); the domain exceeds n by less than `sqrt(n)`, so few elements walk. Four pairs of
half-rounds: three show in statistics at n <= 100. Up to 48 elements are ranked by
their keyed hashes instead.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from roxxel_curriculum._plain_bijection import (
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
"""The largest n: halves stay below 2**32, so products stay inside 64 bits."""

# Rows of the parameters of a group of elements, one column a group.
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
        key: Which bijection, `0 <= key < 2**64`; see `make_key`.

    Returns:
        int64 array of the shape of `index`, values in `[0, n)`, distinct where the
        indices are.

    Raises:
        IndexError: An index is outside `[0, n)`.
        TypeError: `index` does not hold integers.
        ValueError: `n` or `key` is out of range.
    """
    return Permutation(n, key)(index)


def make_key(*parts: int | str) -> int:
    """Return a key in `[0, 2**64)` that depends on every part, the same everywhere.

    Args:
        *parts: Integers of any size and strings; `1` and `"1"` are different parts.

    Raises:
        TypeError: A part is neither.
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
        key: Which bijection, `0 <= key < 2**64`; see `make_key`.

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
        """Return where each index goes; see `permute`."""
        flat, shape = self._checked(index)
        if self._tables is not None:
            return self._tables[0][0, flat].reshape(shape)
        return _walk(flat, self._groups, _forward).astype(np.int64).reshape(shape)

    def inverse(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return which index is sent to each given one: `inverse(p(i)) == i`."""
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
    """Permute several groups of indices, each in its own set, in one call.

    Args:
        index: uint64 indices, group after group, each below its group's size; trusted.
        counts: Indices in each group, shape `(groups,)`.
        sizes: n of each group.
        keys: uint64 key of each group, shape `(groups,)`.

    Returns:
        uint64 array of the shape of `index`; each group is what `permute` gives.
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
    """Return keys that depend on `base` and on every part, element by element."""
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
    """The parameters of the network for some elements, group after group.

    Each is spread over the elements only when it is asked for: all twelve of a block of
    samples together push out of the processor's caches what reading batches needs.

    Args:
        parameters: n, a, k, mask and the round keys, shape `(12, groups)`.
        counts: Elements of each group; None where each is its own, or all are of one.
        num_shared: So many of the parameters are the same for all groups.
    """

    __slots__ = ("_counts", "_num_shared", "_parameters")

    def __init__(
        self,
        parameters: _U64,
        counts: npt.NDArray[np.int64] | None,
        num_shared: int,
    ) -> None:
        self._parameters = parameters
        self._counts = counts
        self._num_shared = num_shared

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
            keys: uint64 key of each, shape `(groups,)`.
            counts: Elements of each, in order; not needed for one group.
        """
        domains = {
            n: (n, -(-n >> k), k, (1 << k) - 1)
            for n in {*sizes}
            for k in ((max(n, 1).bit_length() - 1) // 2,)
        }
        # Most often all groups are of one size, and only the keys differ.
        is_one = len(domains) == 1
        rows = domains.values() if is_one else [domains[n] for n in sizes]
        parameters = np.empty((_FIRST_KEY + HALF_ROUNDS, len(sizes)), np.uint64)
        parameters[:_FIRST_KEY] = np.array([*rows], np.uint64).T
        parameters[_FIRST_KEY:] = _mix(keys + _ROUND_STEPS)
        return cls(
            parameters,
            counts if len(sizes) > 1 else None,
            _FIRST_KEY if is_one else 0,
        )

    def row(self, parameter: int) -> _U64:
        """Return a parameter of every element, or one value for all."""
        row = self._parameters[parameter]
        if self._counts is None:
            return row
        if parameter < self._num_shared:
            return row[:1]
        return np.repeat(row, self._counts)

    def chosen(self, elements: npt.NDArray[np.int64]) -> _Groups:
        """Return the parameters of some of the elements."""
        if self._parameters.shape[1] == 1:
            return self
        if self._counts is not None:
            stops = np.cumsum(self._counts)
            elements = np.searchsorted(stops, elements, side="right")
        return _Groups(self._parameters[:, elements], None, 0)


def _small_tables(
    sizes: Sequence[int], keys: _U64
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each small group's bijection and its inverse as rows of 48."""
    hashes = _mix(keys[:, None] + _SMALL_STEPS)
    outside = np.arange(SMALL) >= np.array(sizes)[:, None]
    hashes[outside] = BITS_64
    order = np.argsort(hashes, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(SMALL)[None, :], axis=1)
    return rank, order


def _hash(x: _U64, key: _U64, out: _U64, spare: _U64) -> None:
    """Write 32 bits that depend on `x` and `key` to `out`; `spare` is overwritten."""
    np.add(x, key, out=out)
    out *= _MULTIPLY_1
    np.right_shift(out, _SHIFT_32, out=spare)
    out ^= spare
    out *= _MULTIPLY_2
    out >>= _SHIFT_32


# Both networks work in memory of their own, made once: to have it made anew for every
# operation takes as long as the operations do.


def _forward(x: _U64, groups: _Groups) -> _U64:
    a, k, mask = groups.row(_A), groups.row(_K), groups.row(_MASK)
    left, right = x >> k, x & mask
    hashed, spare = np.empty_like(x), np.empty_like(x)
    for i in range(_FIRST_KEY, _FIRST_KEY + HALF_ROUNDS, 2):
        _hash(right, groups.row(i), hashed, spare)
        hashed *= a
        hashed >>= _SHIFT_32
        left += hashed
        # Unsigned: below `a` the difference wraps to something huge.
        np.minimum(left, np.subtract(left, a, out=spare), out=left)
        _hash(left, groups.row(i + 1), hashed, spare)
        right += hashed
        right &= mask
    left <<= k
    left |= right
    return left


def _backward(x: _U64, groups: _Groups) -> _U64:
    a, k, mask = groups.row(_A), groups.row(_K), groups.row(_MASK)
    left, right = x >> k, x & mask
    hashed, spare = np.empty_like(x), np.empty_like(x)
    for i in range(_FIRST_KEY + HALF_ROUNDS - 2, _FIRST_KEY - 1, -2):
        _hash(left, groups.row(i + 1), hashed, spare)
        right -= hashed
        right &= mask
        _hash(right, groups.row(i), hashed, spare)
        hashed *= a
        hashed >>= _SHIFT_32
        left -= hashed
        np.minimum(left, np.add(left, a, out=spare), out=left)
    left <<= k
    left |= right
    return left


def _walk(x: _U64, groups: _Groups, apply: Callable[[_U64, _Groups], _U64]) -> _U64:
    """Apply the network until every element is back inside its `[0, n)`."""
    y = apply(x, groups)
    outside = places = np.flatnonzero(y >= groups.row(_N))
    while outside.size:
        groups = groups.chosen(outside)
        again = apply(y[places], groups)
        y[places] = again
        outside = np.flatnonzero(again >= groups.row(_N))
        places = places[outside]
    return y
