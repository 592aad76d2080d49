"""How much of a state lies on each device.

`roxxel_train` uses this module too; user programs need not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Iterable


def bytes_by_device(arrays: Iterable[Any]) -> dict[Any, int]:
    """Return the bytes of arrays on each device of this process.

    Args:
        arrays: Arrays of JAX, or shapes with a sharding. Anything else, such as an
            array of NumPy, lies on no device.

    Example:
        >>> [num_bytes] = bytes_by_device([jax.numpy.ones(3), 2]).values()
        >>> num_bytes
        12
    """
    found: defaultdict[Any, int] = defaultdict(int)
    for array in arrays:
        sharding = getattr(array, "sharding", None)
        if isinstance(sharding, jax.sharding.Sharding):
            part = math.prod(sharding.shard_shape(array.shape))
            for device in sharding.addressable_devices:
                found[device] += part * array.dtype.itemsize
    return found
