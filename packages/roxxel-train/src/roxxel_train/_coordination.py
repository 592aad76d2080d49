"""The one door to JAX's coordination service, which has no public one.

Processes under `jax.distributed` share a small store of names and values and can wait
for each other by name, without a collective on the devices.
"""

from __future__ import annotations

from typing import Any

from jax._src import distributed


def client() -> Any | None:
    """Return this process's client of the coordination service.

    Returns:
        A `DistributedRuntimeClient`, of which Roxxel uses `key_value_set`,
        `key_value_dir_get` and `wait_at_barrier`; None where `jax.distributed` is not
        initialised.
    """
    return distributed.global_state.client


def place() -> tuple[int, int]:
    """Return this process's index and the number of processes.

    As `jax.process_index()` and `jax.process_count()`, but no device is touched.
    """
    state = distributed.global_state
    return state.process_id, state.num_processes or 1
