"""One decision for all processes of a run; with one process, no communication."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import multihost_utils

from roxxel_ckpt.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

_FAILED = -(1 << 61)


def is_first_process() -> bool:
    """Return whether this process decides, cleans up and speaks for all."""
    return jax.process_index() == 0


def decided_by_first(decide: Callable[[], int]) -> int:
    """Return what the first process decides, on every process.

    Args:
        decide: Called on the first process alone; returns a number of at least
            -2**60 and below 2**60.

    Raises:
        CheckpointError: On the other processes, when it raised on the first one.
    """
    if jax.process_count() == 1:
        return decide()
    number, failure = _FAILED, None
    if is_first_process():
        try:
            number = decide()
        except Exception as error:  # noqa: BLE001 - raised below, once all know
            failure = error
    # Without 64-bit types JAX would cut a large number short, so it goes as two halves.
    halves = np.array([number >> 31, number & 0x7FFFFFFF], dtype=np.int32)
    high, low = (int(half) for half in multihost_utils.broadcast_one_to_all(halves))
    if failure is not None:
        raise failure
    if (high << 31) | low == _FAILED:
        raise CheckpointError(
            "process 0 could not go on with the checkpoint; its own error says why"
        )
    return (high << 31) | low


def is_so_on_any(value: bool) -> bool:
    """Return whether a statement holds on at least one process."""
    if jax.process_count() == 1:
        return value
    return bool(np.any(multihost_utils.process_allgather(np.array(value))))
