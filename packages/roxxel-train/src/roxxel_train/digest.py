"""The digest of the batches of a run: tokens hashed with their step, row and column.

The digest of a batch is a sum over its tokens, so the value does not depend on the
number of processes, on the sharding, or on the order of the additions. The devices
compute the sum inside the update, and `batch_digest` computes the same number from a
NumPy array. The digest of a run is a sum over its steps. So the difference of the
digests of two metrics rows is the digest of the steps between these rows.

The digest finds damage, not an attacker: the hash has no secret key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

_MASK = (1 << 64) - 1
_SEEDS = (0x9E3779B9, 0x85EBCA6B)
"""One seed for each of the two 32-bit halves of a digest."""


def batch_digest(tokens: npt.ArrayLike) -> int:
    """Return the digest of a whole batch of tokens, an integer of 64 bits.

    Args:
        tokens: The batch, of shape `(rows, columns)`, as `Sampler.batch` returns it.

    Example:
        >>> batch = np.arange(6, dtype=np.int32).reshape(2, 3)
        >>> batch_digest(batch) == batch_digest(batch.copy())
        True
        >>> batch_digest(batch) == batch_digest(batch[::-1])
        False
    """
    tokens = np.asarray(tokens)
    # Devices hold 64-bit numbers as 32-bit numbers unless `jax_enable_x64` is set.
    tokens = tokens.astype(jax.dtypes.canonicalize_dtype(tokens.dtype), copy=False)
    rows, columns = (np.arange(size, dtype=np.uint32) for size in tokens.shape)
    low, high = _sums(np, _host_bits(tokens), rows, columns)
    return int(low) | int(high) << 32


def add_step(digest: int, step: int, of_batch: int) -> int:
    """Add the batch of update `step`, counted from 0, to the digest of a run.

    Args:
        digest: Digest of other steps; 0 for none.
        step: Step that reads the batch.
        of_batch: `batch_digest` of the batch.

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


def device_digest(tokens: jax.Array) -> jax.Array:
    """Return the two halves of `batch_digest` as uint32, inside a jitted function."""
    rows, columns = (jnp.arange(size, dtype=jnp.uint32) for size in tokens.shape)
    return jnp.stack(_sums(jnp, _device_bits(tokens), rows, columns))


def _sums(xp: Any, bits: Any, rows: Any, columns: Any) -> list[Any]:
    """Return one sum of 32 bits for each seed; `xp` is NumPy or `jax.numpy`."""
    sums: list[Any] = []
    for seed in _SEEDS:
        of_rows = _mix32(xp, rows + xp.uint32(seed))
        positions = _mix32(xp, of_rows[:, None] ^ columns[None, :])
        sums.append(_mix32(xp, positions + bits).sum(dtype=xp.uint32))
    return sums


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


def _host_bits(tokens: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if np.issubdtype(tokens.dtype, np.integer) or tokens.dtype == np.bool_:
        return tokens.astype(np.uint32)
    return tokens.view(f"u{tokens.dtype.itemsize}").astype(np.uint32)


def _device_bits(tokens: jax.Array) -> jax.Array:
    if jnp.issubdtype(tokens.dtype, jnp.integer) or tokens.dtype == jnp.bool_:
        return tokens.astype(jnp.uint32)
    unsigned = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[tokens.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(tokens, unsigned)
    return bits.astype(jnp.uint32)
