"""Messages from any process to all processes, which read them in the same order.

A process that has read all messages waits in one open request to the coordination
service. So even a thousand processes send no requests until there is a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roxxel_ckpt.coordination import CoordinationService

_READ_S = 600.0
"""Longest time of one request. The service answers it at once if a message arrives."""


class News:
    """The messages below a prefix of keys. One thread reads; any thread may post."""

    def __init__(self, service: CoordinationService, keys: str) -> None:
        self._service = service
        self._keys = keys
        self._next = 0
        self._first_kept = 0

    def post(self, *message: Any) -> None:
        """Send a message, which JSON can hold; readers may receive it twice."""
        while True:
            at = self._next
            while not self._service.set(f"{self._keys}/{at}", message):
                at += 1
            # If the number was read before, its key had been deleted, and the message
            # would wait where nobody reads again.
            if at >= self._next:
                return

    def read(self) -> tuple[int, list[Any]]:
        """Wait for the next message; return its number and the message."""
        while True:
            try:
                message = self._service.get(f"{self._keys}/{self._next}", _READ_S)
            except TimeoutError:
                continue
            self._next += 1
            return self._next - 1, message

    def forget(self, before: int) -> None:
        """Delete the messages before a number, which all processes have read."""
        for number in range(self._first_kept, before):
            self._service.delete(f"{self._keys}/{number}")
        self._first_kept = before
