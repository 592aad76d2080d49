"""The coordination service of `jax.distributed`: short texts and barriers by name.

The processes of a program agree through this service and not through collectives on
their devices: a collective needs every process at the same point, and waits for ever
for a process that has failed. A call of the service has a deadline and works in any
thread.

JAX has no public interface to this service. No other module of Roxxel uses the private
interface. `roxxel_train` builds on this module; programs need not use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
from jax._src import distributed


@dataclass(frozen=True)
class CoordinationService:
    """This process's connection to the service.

    Attributes:
        process_index: This process, from 0. Reading it touches no device.
        process_count: Number of processes.
        client: JAX's own client.
    """

    process_index: int
    process_count: int
    client: Any

    def set(self, key: str, value: str, *, overwrite: bool = False) -> bool:
        """Store a text.

        Args:
            key: Parts separated by slashes.
            value: The text.
            overwrite: Replace the text that the key has.

        Returns:
            False when the key exists already and stays as it is.
        """
        try:
            self.client.key_value_set(key, value, allow_overwrite=overwrite)
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise
        return True

    def get(self, key: str, timeout_s: float) -> str:
        """Wait until a key has a text, and return it.

        Raises:
            TimeoutError: No process stored one within `timeout_s` seconds.
        """
        try:
            value: str = self.client.blocking_key_value_get(
                key, _milliseconds(timeout_s)
            )
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise TimeoutError(
                    f"no process stored {key!r} within {timeout_s:g} s"
                ) from error
            raise
        return value

    def entries(self, prefix: str) -> dict[str, str]:
        """Return the texts below a prefix that ends in a slash, by the key's rest."""
        found: list[tuple[str, str]] = self.client.key_value_dir_get(prefix)
        return {key.removeprefix(prefix): value for key, value in found}

    def delete(self, key: str) -> None:
        """Delete a key, or every key below a prefix that ends in a slash."""
        self.client.key_value_delete(key)

    def barrier(self, name: str, timeout_s: float) -> None:
        """Wait until every process has called this with the same name.

        Args:
            name: Not used for a barrier before.
            timeout_s: Longest wait.

        Raises:
            TimeoutError: A process did not call it in time, or this one was too late.
        """
        try:
            self.client.wait_at_barrier(name, _milliseconds(timeout_s))
        except jax.errors.JaxRuntimeError as error:
            raise TimeoutError(f"barrier {name!r}: {error}") from error


def coordination_service() -> CoordinationService | None:
    """Return the service; None where `jax.distributed` is not initialised."""
    state = distributed.global_state
    if state.client is None:
        return None
    return CoordinationService(state.process_id, state.num_processes or 1, state.client)


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
