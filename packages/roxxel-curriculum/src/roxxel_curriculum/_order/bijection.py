"""A keyed bijection of [0, n) that computes the image of one element alone.

The bijection is a generalised Feistel network over a domain `a * 2**k >= n`, with
`2**k` about `sqrt(n)`. The network splits an element into `left` in `[0, a)` and
`right` in `[0, 2**k)`. Half-rounds alternate: one adds a keyed hash of `right` to
`left`, the next a keyed hash of `left` to `right`. If the image is outside `[0, n)`,
the network maps the image again until it is inside (cycle walking: Black and Rogaway,
Ciphers with Arbitrary Finite Domains, 2002). The domain exceeds n by less than
`sqrt(n)`, so few elements need a second pass. Eight half-rounds are needed: with six,
the images for n <= 100 are visibly not uniform. Sets of up to 48 elements use no
network: their keyed hashes are sorted.
"""

from __future__ import annotations

import hashlib
import operator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_SIZE = 2**60
"""The largest n. Both halves stay below 2**32, so products fit 64 bits."""

SMALL = 48
"""Sets of up to this many elements are sorted by their hashes, without a network."""

HALF_ROUNDS = 8

# Indices of the rows that `_parameters` returns.
_N, _A, _K, _MASK, _FIRST_KEY = range(5)

_U64: TypeAlias = npt.NDArray[np.uint64]
_BITS_64 = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_27 = np.uint64(27)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)
_SHIFT_32 = np.uint64(32)
_ROUND_STEPS = np.arange(1, HALF_ROUNDS + 1, dtype=np.uint64)[:, None] * _GOLDEN
_SMALL_STEPS = np.arange(1, SMALL + 1, dtype=np.uint64) * _GOLDEN


def permute(index: npt.ArrayLike, n: int, key: int) -> npt.NDArray[np.int64]:
    """Return the image of each index under a keyed bijection of `[0, n)`.

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
    """A keyed bijection of `[0, n)`, and its inverse.

    Args:
        n: Size of the set, `0 <= n <= 2**60`.
        key: Selects the bijection, `0 <= key < 2**64`; see `make_key`.

    Raises:
        ValueError: `n` or `key` is out of range.

    Example:
        >>> order = Permutation(10**12, make_key("order", 7))
        >>> order.inverse(order([0, 1, 2])).tolist()
        [0, 1, 2]
    """

    __slots__ = ("key", "n")

    def __init__(self, n: int, key: int) -> None:
        self.n = operator.index(n)
        self.key = operator.index(key)
        if not 0 <= self.n <= MAX_SIZE:
            raise ValueError(f"n must be in [0, 2**60], got {n}")
        if not 0 <= self.key <= _BITS_64:
            raise ValueError(
                f"key must be in [0, 2**64), got {key}; make one with make_key"
            )

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Permutation(n={self.n}, key={self.key})"

    def __call__(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the image of each index; see `permute`."""
        return self._permuted(index)

    def inverse(self, index: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the index of each image, so that `p.inverse(p(i)) == i`."""
        return self._permuted(index, inverse=True)

    def _permuted(
        self, index: npt.ArrayLike, *, inverse: bool = False
    ) -> npt.NDArray[np.int64]:
        array = np.asarray(index)
        if array.size == 0:
            return np.empty(array.shape, np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(f"indices must be integers, got dtype {array.dtype}")
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.n:
            wrong = low if low < 0 else high
            raise IndexError(f"index {wrong} is outside [0, {self.n})")
        flat = array.astype(np.uint64).ravel()
        counts, keys = np.array([flat.size]), np.array([self.key], np.uint64)
        image = permute_groups(flat, counts, [self.n], keys, inverse=inverse)
        return image.view(np.int64).reshape(array.shape)


def permute_groups(
    index: _U64,
    counts: npt.NDArray[np.int64],
    sizes: Sequence[int],
    keys: _U64,
    *,
    inverse: bool = False,
) -> _U64:
    """Apply `permute` to several groups of indices, each with its own n and key.

    `index` holds the indices of all groups, group after group, each in `[0, n)`.
    `counts`, `sizes` (each group's n) and `keys` have one entry for each group.
    """
    network = _backward if inverse else _forward
    if min(sizes) > SMALL:
        return _walk(index, _parameters(counts, sizes, keys), network)
    is_small = np.array(sizes) <= SMALL
    of_small = np.repeat(is_small, counts)
    small, large = np.flatnonzero(is_small).tolist(), np.flatnonzero(~is_small).tolist()
    out = np.empty_like(index)
    tables = _small_tables([sizes[i] for i in small], keys[small], inverse=inverse)
    row = np.repeat(np.arange(len(small)), counts[small])
    out[of_small] = tables[row, index[of_small]]
    if large:
        of_large = _parameters(counts[large], [sizes[i] for i in large], keys[large])
        out[~of_small] = _walk(index[~of_small], of_large, network)
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


def _parameters(
    counts: npt.NDArray[np.int64], sizes: Sequence[int], keys: _U64
) -> _U64:
    """Return rows of n, a, k, mask and round keys, with one column per element.

    With a single group, one column serves all elements.
    """
    halves = [(max(n, 1).bit_length() - 1) // 2 for n in sizes]
    domains = [
        (n, -(-n >> k), k, (1 << k) - 1) for n, k in zip(sizes, halves, strict=True)
    ]
    domain_rows = np.array(domains, np.uint64).T
    parameters = np.concatenate([domain_rows, _mix(keys + _ROUND_STEPS)])
    return parameters if len(sizes) == 1 else np.repeat(parameters, counts, axis=1)


def _small_tables(
    sizes: Sequence[int], keys: _U64, *, inverse: bool
) -> npt.NDArray[np.int64]:
    """Return a table with a row per group: entry `i` is the image of `i < SMALL`.

    If `inverse`, the table holds the inverse bijection instead.
    """
    hashes = _mix(keys[:, None] + _SMALL_STEPS)
    outside = np.arange(SMALL) >= np.array(sizes)[:, None]
    hashes[outside] = _BITS_64
    order = np.argsort(hashes, axis=1, kind="stable")
    return order if inverse else np.argsort(order, axis=1)


def _hash(x: _U64, key: _U64) -> _U64:
    """Return 32 bits that depend on `x` and `key`."""
    x = (x + key) * _MULTIPLY_1
    return ((x ^ (x >> _SHIFT_32)) * _MULTIPLY_2) >> _SHIFT_32


def _forward(x: _U64, parameters: _U64) -> _U64:
    a, k, mask = parameters[_A], parameters[_K], parameters[_MASK]
    left, right = x >> k, x & mask
    for i in range(_FIRST_KEY, _FIRST_KEY + HALF_ROUNDS, 2):
        left = left + ((_hash(right, parameters[i]) * a) >> _SHIFT_32)
        # Modulo `a`: if left < a, the unsigned `left - a` wraps to a huge number.
        left = np.minimum(left, left - a)
        right = (right + _hash(left, parameters[i + 1])) & mask
    return (left << k) | right


def _backward(x: _U64, parameters: _U64) -> _U64:
    a, k, mask = parameters[_A], parameters[_K], parameters[_MASK]
    left, right = x >> k, x & mask
    for i in range(_FIRST_KEY + HALF_ROUNDS - 2, _FIRST_KEY - 1, -2):
        right = (right - _hash(left, parameters[i + 1])) & mask
        left = left - ((_hash(right, parameters[i]) * a) >> _SHIFT_32)
        # Modulo `a`: a difference below 0 has wrapped to a huge unsigned `left`.
        left = np.minimum(left, left + a)
    return (left << k) | right


def _walk(x: _U64, parameters: _U64, network: Callable[[_U64, _U64], _U64]) -> _U64:
    """Apply the network until the image of every element is inside its `[0, n)`."""
    y = network(x, parameters)
    outside = elements = np.flatnonzero(y >= parameters[_N])
    while outside.size:
        if parameters.shape[1] > 1:
            parameters = parameters[:, outside]
        again = network(y[elements], parameters)
        y[elements] = again
        outside = np.flatnonzero(again >= parameters[_N])
        elements = elements[outside]
    return y
