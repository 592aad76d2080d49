"""The digest of the batches of a run: tokens hashed with their step, row and column.

The digest of a batch is a sum over its tokens, so the value does not depend on the
number of processes, on the sharding, or on the order of the additions. `batch_digest`
computes the number from the rows of one process or of all, and `device_digest` computes
the same number inside a compiled update. The digest of a run is a sum over its steps.
So the difference of the digests of two metrics rows is the digest of the steps between
these rows.

The digest finds damage, not an attacker: the hash has no secret key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = [
    "add_step",
    "batch_digest",
    "device_digest",
    "digest_text",
    "from_halves",
    "sum_digests",
    "to_halves",
]

_MASK = (1 << 64) - 1
_HALF = (1 << 32) - 1
_SEEDS = (0x9E3779B9, 0x85EBCA6B)
"""One seed for each of the two 32-bit halves of a digest."""


def batch_digest(tokens: npt.ArrayLike, first_row: int = 0) -> int:
    """Return the digest of a batch of tokens, or of some rows of it.

    Args:
        tokens: Tokens of shape `(rows, columns)`, as `Sampler.batch` returns them.
        first_row: Index of the first of these rows in the whole batch. A process that
            holds rows 4 to 7 passes 4, and `sum_digests` adds the digests of all
            processes.

    Returns:
        An integer of 64 bits.

    Raises:
        ValueError: `tokens` has another number of dimensions, or `first_row` is
            negative.

    Example:
        >>> batch = np.arange(6, dtype=np.int32).reshape(2, 3)
        >>> batch_digest(batch) == batch_digest(batch[::-1])
        False
        >>> parts = [batch_digest(batch[:1]), batch_digest(batch[1:], first_row=1)]
        >>> sum_digests(parts) == batch_digest(batch)
        True
    """
    array = np.asarray(tokens)
    if array.ndim != 2:
        raise ValueError(
            f"tokens has shape {array.shape}; a digest needs rows and columns"
        )
    if first_row < 0:
        raise ValueError(f"first_row must be 0 or more, got {first_row}")
    return from_halves(_sums(np, array, first_row))


def sum_digests(parts: Iterable[int]) -> int:
    """Return the digest of a batch from the digests of its rows, in any order.

    Example:
        >>> sum_digests([0x1_FFFFFFFF, 0x2_00000001]) == 0x3_00000000
        True
    """
    sums = np.zeros(2, np.uint32)
    for part in parts:
        sums += np.array(to_halves(part), np.uint32)
    return from_halves(sums)


def to_halves(digest: int) -> tuple[int, int]:
    """Return the lower and the upper 32 bits of a digest, for arrays of 32 bits.

    Example:
        >>> to_halves(0x1_00000002)
        (2, 1)
    """
    return digest & _HALF, digest >> 32


def from_halves(halves: Iterable[Any]) -> int:
    """Return the digest of its halves, such as those of `device_digest`.

    Example:
        >>> from_halves(to_halves(7 << 40)) == 7 << 40
        True
    """
    low, high = (int(half) for half in halves)
    return low | high << 32


def add_step(digest: int, step: int, of_batch: int) -> int:
    """Add the batch of update `step`, counted from 0, to the digest of a run.

    Args:
        digest: Digest of the other steps; 0 if there are none.
        step: Step that reads the batch.
        of_batch: `batch_digest` of the whole batch.

    Example:
        >>> add_step(add_step(0, 3, 17), 4, 18) == add_step(add_step(0, 4, 18), 3, 17)
        True
    """
    return (digest + _mix64(of_batch ^ _mix64(step + 1))) & _MASK


def digest_text(digest: int) -> str:
    """Return a digest as 16 hexadecimal digits, as metrics rows hold it.

    Example:
        >>> digest_text(255)
        '00000000000000ff'
    """
    return f"{digest:016x}"


def device_digest(tokens: Any) -> Any:
    """Return the two halves of a JAX array's `batch_digest`, as uint32.

    Call this function inside a jitted function. The tokens may be sharded in any way.
    """
    xp = tokens.__array_namespace__()
    return xp.stack(_sums(xp, tokens, 0))


def _sums(xp: Any, tokens: Any, first_row: int) -> list[Any]:
    """Return one sum of 32 bits for each seed; `xp` is NumPy or `jax.numpy`."""
    num_rows, num_columns = tokens.shape
    bits = _bits(xp, tokens)
    rows = xp.arange(num_rows, dtype=xp.uint32) + xp.uint32(first_row)
    columns = xp.arange(num_columns, dtype=xp.uint32)
    sums: list[Any] = []
    for seed in _SEEDS:
        of_rows = _mix32(xp, rows + xp.uint32(seed))
        positions = _mix32(xp, of_rows[:, None] ^ columns[None, :])
        sums.append(_mix32(xp, positions + bits).sum(dtype=xp.uint32))
    return sums


def _bits(xp: Any, tokens: Any) -> Any:
    """Return each token as 32 bits: the lower 32 bits of a longer integer."""
    if tokens.dtype == xp.float64:
        # Devices hold no longer floats unless `jax_enable_x64` is set.
        tokens = tokens.astype(xp.float32)
    if tokens.dtype.kind not in "iub":
        tokens = tokens.view(f"u{tokens.dtype.itemsize}")
    return tokens.astype(xp.uint32)


def _mix32(xp: Any, x: Any) -> Any:
    """Return the finalizer of MurmurHash3, a bijection of uint32."""
    x = (x ^ (x >> xp.uint32(16))) * xp.uint32(0x85EBCA6B)
    x = (x ^ (x >> xp.uint32(13))) * xp.uint32(0xC2B2AE35)
    return x ^ (x >> xp.uint32(16))


def _mix64(x: int) -> int:
    """Return the finalizer of SplitMix64, a bijection of 64-bit integers."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
