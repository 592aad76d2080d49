"""What the processes of a run agree upon; with one process, no communication.

In the calling thread they agree through their devices, as any computation on several
processes does: so only where every process makes the same call. In the background
they meet through JAX's coordination service, which disturbs no computation.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax._src import distributed as jax_distributed
from jax.experimental import multihost_utils

from roxxel_ckpt.errors import CheckpointError, OtherProcessError, brief

if TYPE_CHECKING:
    from collections.abc import Callable

_FAILED = -(1 << 61)
_HERE = "here"
_serials = itertools.count(1)


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


def next_serial() -> int:
    """Return a number above 0 that this process has not given out before."""
    return next(_serials)


class Meeting:
    """Where the processes meet while one save goes on in the background.

    They meet several times, in turn: the first process hears all others before it
    speaks, and they wait for its word. A process that failed says so at the turn that
    it would come to next; so nobody waits for one that never comes.

    Args:
        serial: The same on every process, and another for every meeting.
    """

    def __init__(self, serial: int) -> None:
        self._client: Any = _coordination() if jax.process_count() > 1 else None
        self._name = f"roxxel-ckpt/{serial}"
        self._turn = 0

    def wait_for_all(self, timeout_s: float) -> None:
        """Return when every process has come to this turn.

        Raises:
            OtherProcessError: One has failed instead.
            TimeoutError: One has not come after `timeout_s` seconds.
        """
        if self._client is None:
            return
        until, turn = time.monotonic() + timeout_s, self._turn
        if is_first_process():
            for process in range(1, jax.process_count()):
                self._hear(turn, process, until)
            self._say(_HERE)
        else:
            self._say(_HERE)
            self._hear(turn, 0, until)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this process has failed, and why."""
        if self._client is None:
            return
        told = isinstance(error, OtherProcessError)
        self._say(("" if told else f"process {jax.process_index()}: ") + brief(error))

    def forget(self) -> None:
        """Free what the meeting left in the service; call it when it is over."""
        if self._client is not None and is_first_process():
            self._client.key_value_delete(f"{self._name}/")

    def _say(self, words: str) -> None:
        key = f"{self._name}/{self._turn}/{jax.process_index()}"
        self._turn += 1
        self._client.key_value_set(key, words)

    def _hear(self, turn: int, process: int, until: float) -> None:
        left_ms = max(1, int((until - time.monotonic()) * 1000))
        key = f"{self._name}/{turn}/{process}"
        try:
            words: str = self._client.blocking_key_value_get(key, left_ms)
        except jax.errors.JaxRuntimeError as error:
            raise TimeoutError(f"process {process} did not come") from error
        if words != _HERE:
            raise OtherProcessError(words)


def _coordination() -> Any:
    """Return the client of JAX's coordination service."""
    client = jax_distributed.global_state.client
    if client is None:
        raise CheckpointError(
            "several processes can save together only when they know of each other; "
            "call jax.distributed.initialize() first"
        )
    return client
