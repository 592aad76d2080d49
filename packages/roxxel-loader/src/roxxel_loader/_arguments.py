"""Checks of single arguments."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Seed: TypeAlias = int | jax.Array
"""A seed: an integer, or a key of `jax.random`."""


def seed_number(seed: Any) -> int:
    """Return an integer seed, or the bits of a JAX key as one integer.

    The integer of `jax.random.key(7)` and `jax.random.PRNGKey(7)` is 7.

    Raises:
        TypeError: `seed` is neither an integer nor one key.
    """
    is_array = isinstance(seed, jax.Array)
    if is_array and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if is_array and seed.ndim == 1 and seed.dtype == np.uint32:
        return int.from_bytes(np.asarray(seed).astype(">u4").tobytes(), "big")
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(
            f"seed is {seed!r}; give an integer, or one key of jax.random"
        ) from None


def check_bool(**flags: Any) -> None:
    """Raise a TypeError if one of the named flags is not True or False."""
    for name, flag in flags.items():
        if not isinstance(flag, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {flag!r:.50}")


def check_callable(**functions: Any) -> None:
    """Raise a TypeError if one of the named functions cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"{name} is {function!r}, which cannot be called; give a function"
            )
