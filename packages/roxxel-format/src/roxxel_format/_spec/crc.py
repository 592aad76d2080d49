"""The CRC-32 of consecutive blocks, from the CRC-32 of each, without their bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_POLYNOMIAL = 0xEDB88320


def combined_crc(checksums: npt.NDArray[np.uint32], block_size: int) -> int:
    """Return the CRC-32 of consecutive blocks of equal size.

    A CRC is linear: the CRC of A followed by B is the CRC of A, advanced over as many
    zero bytes as B has, xor the CRC of B. This is `crc32_combine` of zlib (Mark Adler),
    applied to pairs, pairs of pairs, and so on, with numpy.

    Args:
        checksums: CRC-32 of each block, shape `(n,)`, n at least 1.
        block_size: Bytes of a block; a power of two.
    """
    exponent = block_size.bit_length() - 1
    count = 1 << (len(checksums) - 1).bit_length()
    # A CRC of 0 stays 0 over zero bytes, so padding in front changes nothing.
    level = np.zeros(count, np.uint32)
    level[count - len(checksums) :] = checksums
    while len(level) > 1:
        level = _advanced(level[0::2], exponent) ^ level[1::2]
        exponent += 1
    return int(level[0])


def _advanced(
    checksums: npt.NDArray[np.uint32], exponent: int
) -> npt.NDArray[np.uint32]:
    """Advance each checksum over `2**exponent` zero bytes."""
    table = _tables(exponent)
    result = table[0][checksums & 0xFF]
    for byte in (1, 2, 3):
        result ^= table[byte][(checksums >> np.uint32(8 * byte)) & 0xFF]
    return result


@lru_cache(maxsize=64)
def _tables(exponent: int) -> npt.NDArray[np.uint32]:
    """Return the result for each value of each byte; shape `(4, 256)`."""
    columns = _columns(exponent + 3)
    values = np.arange(256, dtype=np.uint32)
    tables = np.zeros((4, 256), np.uint32)
    for bit, column in enumerate(columns):
        byte, position = divmod(bit, 8)
        tables[byte] ^= ((values >> np.uint32(position)) & 1) * np.uint32(column)
    return tables


@lru_cache(maxsize=64)
def _columns(exponent: int) -> tuple[int, ...]:
    """Return the result for each bit after `2**exponent` zero bits."""
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
