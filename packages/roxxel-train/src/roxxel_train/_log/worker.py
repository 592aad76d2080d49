"""A queue of calls and the thread that makes them.

The files, the terminal and every sink have a worker each. A terminal that is stopped
with Ctrl-S, or a sink that waits for its server, delays only its own calls.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")

_MAX_WAITING = 10_000


class Worker:
    """Makes calls in order on a thread of its own.

    Args:
        name: Name of the thread.
        is_lossy: Drop a call when 10,000 calls are waiting, instead of queueing it.
    """

    def __init__(self, name: str, *, is_lossy: bool = False) -> None:
        self._is_lossy = is_lossy
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]]
        self._calls = queue.SimpleQueue()
        self._is_closed = False
        # A daemon: a sink that never returns must not keep the interpreter alive.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, function: Callable[..., object], *args: Any) -> bool:
        """Queue a call without waiting for it.

        Args:
            function: Must not raise: its error would end the thread.
            *args: Its arguments.

        Returns:
            False when the call was dropped.
        """
        if self._is_lossy and self._calls.qsize() >= _MAX_WAITING:
            return False
        self._calls.put((function, args))
        return True

    def call(
        self, function: Callable[[], _Result], timeout_s: float | None = None
    ) -> _Result:
        """Make a call after all queued ones, and return or raise what it gives.

        Raises:
            TimeoutError: The call was not made within `timeout_s` seconds.
        """
        outcome: Future[_Result] = Future()
        self._calls.put((_settle, (outcome, function)))
        return outcome.result(timeout_s)

    def close(self, timeout_s: float | None = None) -> bool:
        """Make the queued calls and end the thread.

        Returns:
            False when the calls were not made within `timeout_s` seconds. The thread
            then ends when the call that blocks it returns.
        """
        self._calls.put((self._end, ()))
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._is_closed:
            function, args = self._calls.get()
            function(*args)

    def _end(self) -> None:
        self._is_closed = True


def _settle(outcome: Future[_Result], function: Callable[[], _Result]) -> None:
    try:
        outcome.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
        outcome.set_exception(error)
