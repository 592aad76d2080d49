"""The bijection of `_bijection` element by element, in Python's own integers.

An operation of numpy takes its time however small the array, so a few elements are
permuted sooner this way: one in a tenth of the time. It is also the shortest statement
of the law, and the tests hold the other to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SMALL = 48
"""The largest n of which all elements are ranked by their hashes."""

HALF_ROUNDS = 8
BITS_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLY_1 = 0xBF58476D1CE4E5B9
MULTIPLY_2 = 0x94D049BB133111EB


def permute_plainly(indices: Iterable[int], n: int, key: int) -> list[int]:
    """Return where the keyed bijection of `[0, n)` sends each index.

    Args:
        indices: Each in `[0, n)`; trusted.
        n: Size of the set, `1 <= n <= 2**60`.
        key: Which bijection, `0 <= key < 2**64`.

    Returns:
        A place in `[0, n)` for each index, in their order. All are Python's own
        integers, for numpy's would overflow.
    """
    if n <= SMALL:
        hashes = [_mix(key + step * GOLDEN) for step in range(1, n + 1)]
        order = sorted(range(n), key=hashes.__getitem__)
        return [order.index(index) for index in indices]
    k = (n.bit_length() - 1) // 2
    a, mask = -(-n >> k), (1 << k) - 1
    keys = [_mix(key + step * GOLDEN) for step in range(1, HALF_ROUNDS + 1)]
    pairs = list(zip(keys[::2], keys[1::2], strict=True))

    def moved(place: int) -> int:
        left, right = place >> k, place & mask
        for left_key, right_key in pairs:
            left = (left + (_hash(right, left_key) * a >> 32)) % a
            right = right + _hash(left, right_key) & mask
        return left << k | right

    places: list[int] = []
    for index in indices:
        place = moved(index)
        while place >= n:  # walks on along its cycle
            place = moved(place)
        places.append(place)
    return places


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
