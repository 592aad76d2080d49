"""The keyed bijection of `permute` for one element at a time, in Python integers.

This is the shortest statement of the law, to compare with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SMALL = 48
"""Sets of up to this many elements are ordered by their hashes, without a network."""

HALF_ROUNDS = 8
BITS_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLY_1 = 0xBF58476D1CE4E5B9
MULTIPLY_2 = 0x94D049BB133111EB


def permute_plainly(indices: Iterable[int], n: int, key: int) -> list[int]:
    """Return the image of each index, an unchecked Python integer; numpy's overflow."""
    if n <= SMALL:
        hashes = [_mix(key + step * GOLDEN) for step in range(1, n + 1)]
        order = sorted(range(n), key=hashes.__getitem__)
        return [order.index(index) for index in indices]
    k = (n.bit_length() - 1) // 2
    a, mask = -(-n >> k), (1 << k) - 1
    keys = [_mix(key + step * GOLDEN) for step in range(1, HALF_ROUNDS + 1)]
    pairs = list(zip(keys[::2], keys[1::2], strict=True))

    def network(element: int) -> int:
        left, right = element >> k, element & mask
        for left_key, right_key in pairs:
            left = (left + (_hash(right, left_key) * a >> 32)) % a
            right = right + _hash(left, right_key) & mask
        return left << k | right

    images: list[int] = []
    for index in indices:
        image = network(index)
        while image >= n:  # outside the set: follow the cycle back into it
            image = network(image)
        images.append(image)
    return images


def mix_plainly(key: int, *parts: int) -> int:
    """Return a key in `[0, 2**64)` that depends on `key` and on every part."""
    for part in parts:
        key = _mix((key ^ part) + GOLDEN)
    return key


def _mix(z: int) -> int:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    z &= BITS_64
    z = (z ^ z >> 30) * MULTIPLY_1 & BITS_64
    z = (z ^ z >> 27) * MULTIPLY_2 & BITS_64
    return z ^ z >> 31


def _hash(x: int, key: int) -> int:
    """Return 32 bits that depend on `x` and `key`."""
    x = (x + key) * MULTIPLY_1 & BITS_64
    return ((x ^ x >> 32) * MULTIPLY_2 & BITS_64) >> 32
