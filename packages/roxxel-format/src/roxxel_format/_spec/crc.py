"""The CRC-32 of a run of blocks, from the CRC-32 of each (no byte is read)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_POLYNOMIAL = 0xEDB88320


def combined_crc(checksums: npt.NDArray[np.uint32], block_size: int) -> int:
    """Return the CRC-32 of consecutive blocks of equal size.

    A CRC is linear: that of A and B together is that of A carried over as many zeros
    as B is long, xor that of B. (Mark Adler's `crc32_combine` in zlib, done here for
    pairs, pairs of pairs, and so on, with numpy.)

    Args:
        checksums: CRC-32 of each block, shape `(n,)`, n at least 1.
        block_size: Bytes of a block; a power of two.
    """
    exponent = block_size.bit_length() - 1
    count = 1 << (len(checksums) - 1).bit_length()
    # Nothing, carried over zeros, stays nothing: so zeros in front change nothing.
    level = np.zeros(count, np.uint32)
    level[count - len(checksums) :] = checksums
    while len(level) > 1:
        level = _carried(level[0::2], exponent) ^ level[1::2]
        exponent += 1
    return int(level[0])


def _carried(
    checksums: npt.NDArray[np.uint32], exponent: int
) -> npt.NDArray[np.uint32]:
    """Carry each checksum over `2**exponent` zero bytes."""
    table = _tables(exponent)
    result = table[0][checksums & 0xFF]
    for byte in (1, 2, 3):
        result ^= table[byte][(checksums >> np.uint32(8 * byte)) & 0xFF]
    return result


@lru_cache(maxsize=64)
def _tables(exponent: int) -> npt.NDArray[np.uint32]:
    """Return what each value of each byte becomes; shape `(4, 256)`."""
    columns = _columns(exponent + 3)
    values = np.arange(256, dtype=np.uint32)
    tables = np.zeros((4, 256), np.uint32)
    for bit, column in enumerate(columns):
        byte, place = divmod(bit, 8)
        tables[byte] ^= ((values >> np.uint32(place)) & 1) * np.uint32(column)
    return tables


@lru_cache(maxsize=64)
def _columns(exponent: int) -> tuple[int, ...]:
    """Return what each bit becomes after `2**exponent` zero bits."""
    if exponent == 0:
        return (_POLYNOMIAL, *(1 << bit for bit in range(31)))
    half = _columns(exponent - 1)
    return tuple(_apply(half, column) for column in half)


def _apply(columns: tuple[int, ...], register: int) -> int:
    result = 0
    for bit, column in enumerate(columns):
        if register >> bit & 1:
            result ^= column
    return result
