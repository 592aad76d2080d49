"""Signals that ask a run to stop: noticed at once, acted on between two steps.

In one process SIGTERM and SIGINT set a flag; the second of them acts as it would have
without us. Under `jax.distributed` SIGTERM belongs to JAX, whose notifier lets all
processes agree on the step to stop at, and a Python handler would replace it; so there
every process asks JAX.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Self

import jax
from jax.experimental import multihost_utils

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopRequests:
    """A context in which signals to stop are remembered instead of obeyed."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Install the handlers; only the main thread of a lone process may."""
        alone = jax.process_count() == 1
        if alone and threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                # Who ignores a signal, as nohup does, wants it ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Put the handlers back that were there before."""
        for number in tuple(self._previous):
            self._give_back(number)

    def received(self, step: int) -> str | None:
        """Return the name of the signal that asks for a stop, None without one.

        Args:
            step: Updates done; all processes ask with the same one and get the same
                answer.
        """
        if self._received is None and jax.process_count() > 1:
            if multihost_utils.reached_preemption_sync_point(step):
                return signal.SIGTERM.name
            return None
        return None if self._received is None else signal.Signals(self._received).name

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            for installed in tuple(self._previous):
                self._give_back(installed)
            signal.raise_signal(number)
            return
        self._received = number

    def _give_back(self, number: int) -> None:
        handler = self._previous.pop(number)
        # None stands for a handler that was not installed from Python.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # pyright: ignore[reportArgumentType]
