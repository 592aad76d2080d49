"""The digest of a state: of its leaves' names, and the bits at each place.

Each device sums the values it holds. A sum does not depend on its order, so neither
sharding nor the number of processes changes the digest. All leaves of one shape share a
compiled program: one program for 150 leaves took 13 s to compile on two busy cores,
five programs for their five shapes took 3 s. All sums come to the host in one copy: one
by one, the sums of 150 leaves took 150 ms from a GPU.

The digest finds damage and exchanged files. It stops no attacker: the hash has no key.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from roxxel_ckpt._arrays.layout import LeafSpec

_HALF = (1 << 32) - 1
_STEP = 0x9E3779B1  # odd, so different places of one array are different


def state_digest(leaves: Iterable[tuple[str, LeafSpec, Any]]) -> str:
    """Return the digest of leaves, in any order, as 16 hexadecimal digits.

    Args:
        leaves: The name of each leaf, its shape and dtype, and its values as a
            checkpoint stores them: an array of NumPy, or of JAX in any sharding.
    """
    named = [
        (f"{name} {spec}", _summed(values))
        for name, spec, values in leaves
        if spec.is_stored
    ]
    found = _fetched([sums for _, sums in named])
    lines = sorted(
        f"{leaf} {low} {high}\n"
        for (leaf, _), (low, high) in zip(named, found, strict=True)
    )
    text = "".join(lines).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _fetched(arrays: list[jax.Array]) -> list[list[int]]:
    """Return small arrays of one shape as lists; copy once for each set of devices."""
    groups: defaultdict[Any, list[int]] = defaultdict(list)
    for index, array in enumerate(arrays):
        groups[frozenset(array.sharding.device_set)].append(index)
    found: dict[int, list[int]] = {}
    for indices in groups.values():
        rows = np.asarray(_stacked([arrays[index] for index in indices])).tolist()
        found.update(zip(indices, rows, strict=True))
    return [found[index] for index in range(len(arrays))]


@jax.jit
def _stacked(arrays: list[jax.Array]) -> jax.Array:
    return jnp.stack(arrays)


def _words(values: Any) -> Any:
    """Return values as unsigned integers; 64 bits become two, with x64 or without."""
    if isinstance(values, jax.Array):
        return values
    bits = np.ascontiguousarray(values).reshape(np.shape(values))
    if bits.dtype.itemsize > 4:
        return bits[..., None].view(np.uint32)
    return bits.view(f"u{bits.dtype.itemsize}")


def _summed(values: Any) -> jax.Array:
    """Return the sums of one leaf; on a CPU, wait until they are computed.

    JAX allows 32 programs in flight on a CPU. With more, the collectives of two
    programs can wait for each other, and XLA ends the process.
    """
    sums = _sums(_words(values))
    if jax.default_backend() == "cpu":
        sums.block_until_ready()
    return sums


@jax.jit
def _sums(values: Any) -> jax.Array:
    """Return two sums of 32 bits, equal on every process; shape (2,)."""
    bits = values
    if bits.dtype == jnp.bool_:
        bits = bits.astype(jnp.uint8)
    elif not jnp.issubdtype(bits.dtype, jnp.unsignedinteger):
        size = min(bits.dtype.itemsize, 4)
        if jnp.issubdtype(bits.dtype, jnp.complexfloating):
            bits = jnp.stack([bits.real, bits.imag], -1)
        bits = jax.lax.bitcast_convert_type(bits, f"uint{8 * size}")
    elif bits.dtype.itemsize > 4:
        bits = jax.lax.bitcast_convert_type(bits, jnp.uint32)
    places, stride = jnp.zeros(bits.shape, jnp.uint32), 1
    for axis in reversed(range(bits.ndim)):
        along = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        places += along * jnp.uint32(stride & _HALF)
        stride *= bits.shape[axis]
    # A bijection of the bits at each place, so no change of a single value is missed.
    x = _mixed((places * jnp.uint32(_STEP)) ^ bits.astype(jnp.uint32))
    y = x * (x >> 7 | 1)
    sums = x.sum(dtype=jnp.uint32), (y ^ (y >> 15)).sum(dtype=jnp.uint32)
    return jnp.stack(sums)


def _mixed(x: Any) -> Any:
    """Return the finalizer of MurmurHash3, a bijection of uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
