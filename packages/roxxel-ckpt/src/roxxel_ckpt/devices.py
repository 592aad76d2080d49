"""Copies of a state on its devices, so that training goes on during a save.

A device copies a gigabyte within its memory in half a millisecond, and to the host in a
hundred milliseconds. So `save` copies on the device where there is room for a second
state, and returns; the copy goes to the host behind the next steps.

`roxxel_train` uses this module too; user programs need not.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from roxxel_ckpt.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class NoRoomError(Exception):
    """A device has no memory left for a copy."""


def has_room(arrays: Mapping[str, Any]) -> bool | None:
    """Return whether each device of this process has room for a copy of its part.

    Room is the memory that was still free at the peak so far. None if a device does not
    report its memory, as a CPU.
    """
    needed = bytes_by_device(arrays.values())
    free = {device: _free_bytes(device) for device in needed}
    if not free or None in free.values():
        return None
    return all((free[device] or 0) >= needed[device] for device in needed)


def copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays; JAX arrays become copies on the same devices.

    The originals may be donated afterwards. With several processes, every process makes
    this call.

    Raises:
        NoRoomError: A device has no room after all.
    """
    groups: defaultdict[Any, list[str]] = defaultdict(list)
    for name, array in arrays.items():
        if isinstance(array, jax.Array):
            # One program runs on one set of devices.
            groups[frozenset(array.sharding.device_set)].append(name)
    copies = dict(arrays)
    try:
        for names in groups.values():
            originals = [arrays[name] for name in names]
            copy = _copier(tuple(array.sharding for array in originals))
            copies.update(zip(names, copy(originals), strict=True))
        return jax.block_until_ready(copies)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise NoRoomError(str(error)) from error
        raise


def reserve_on_host(arrays: Mapping[str, Any]) -> None:
    """Let JAX allocate the host memory through which copies leave GPUs.

    JAX keeps this memory. Allocating it stops a GPU for a second per gigabyte (an H200
    in a virtual machine), and the first save would be slower by this.

    Raises:
        CheckpointWriteError: JAX cannot allocate so much, so no save could succeed.
    """
    needed = {
        device: num_bytes
        for device, num_bytes in bytes_by_device(arrays.values()).items()
        if device.platform == "gpu"  # where Orbax copies through such memory
    }
    try:
        held = [
            jax.device_put(
                np.zeros(num_bytes, np.uint8),
                jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host"),
            )
            for device, num_bytes in needed.items()
        ]
        jax.block_until_ready(held)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        gigabytes = sum(needed.values()) / 2**30
        raise CheckpointWriteError(
            f"a save copies {gigabytes:.1f} GiB of this process's devices to the host, "
            "and JAX may not pin so much of its memory; set "
            f"XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB above {math.ceil(gigabytes)} (default: "
            "64) before the program starts, or use more processes"
        ) from error


@functools.cache
def _copier(
    shardings: tuple[jax.sharding.Sharding, ...],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    def copy(arrays: list[jax.Array]) -> list[jax.Array]:
        return [jnp.copy(array) for array in arrays]

    return jax.jit(copy, out_shardings=list(shardings))


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


def _free_bytes(device: Any) -> int | None:
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats["peak_bytes_in_use"]
