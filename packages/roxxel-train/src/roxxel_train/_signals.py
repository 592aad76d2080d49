"""What reaches a run from outside: requests to stop and to save.

They are noticed at once and acted on between two steps. In one process SIGTERM and
SIGINT ask to stop, the second of them acts as it would have without us, and SIGUSR1
asks to save. Under `jax.distributed` SIGTERM belongs to JAX, whose notifier lets all
processes agree on the step to stop at, and a Python handler would replace it; so there
every process asks JAX. A request to save, which any process may get, is agreed upon
through JAX's coordination service.
"""

from __future__ import annotations

import signal
import threading
from itertools import count
from typing import TYPE_CHECKING, Self

import jax
from jax.experimental import multihost_utils

from roxxel_train import _coordination

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_STOPPING = (signal.SIGTERM, signal.SIGINT)

_ASKED_EVERY = 8
"""Steps between two looks at what other processes ask for; a process is never as many
steps ahead of another, since every step needs all of them."""

_runs = count()


class Requests:
    """A context in which signals are remembered instead of obeyed."""

    def __init__(self) -> None:
        self._stop: int | None = None
        # No Event: a handler may run while its own thread holds the Event's lock.
        self._is_save_asked = False
        self._previous: dict[int, object] = {}
        # Names of what is agreed upon, the same in every process.
        self._run = next(_runs)
        self._agreed = 0
        self._has_asked = False

    def __enter__(self) -> Self:
        """Install the handlers; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            self._install(signal.SIGUSR1, self._remember_save)
            if jax.process_count() == 1:
                for number in _STOPPING:
                    self._install(number, self._remember_stop)
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

    def stop(self, step: int) -> str | None:
        """Return the name of the signal that asks for a stop, None without one.

        Args:
            step: Updates done; all processes ask with the same one and get the same
                answer.
        """
        if self._stop is None and jax.process_count() > 1:
            if multihost_utils.reached_preemption_sync_point(step):
                return signal.SIGTERM.name
            return None
        return None if self._stop is None else signal.Signals(self._stop).name

    def is_stopping(self) -> bool:
        """Return whether this process, which must be alone, has been asked to stop."""
        return self._stop is not None

    def ask_to_save(self) -> None:
        """Ask for a checkpoint after the step that is running; from any thread."""
        self._is_save_asked = True

    def save(self, step: int) -> bool:
        """Return whether a checkpoint was asked for; every request counts once.

        Args:
            step: Updates done; as for `stop`, and asked at every step.
        """
        client = _coordination.client() if jax.process_count() > 1 else None
        if client is None:
            asked = self._is_save_asked
            if asked:
                self._is_save_asked = False
            return asked
        prefix = f"roxxel_train/save/{self._run}/{self._agreed}/"
        if self._is_save_asked and not self._has_asked:
            # The next look but one: until then every process has looked once more.
            at = (step // _ASKED_EVERY + 2) * _ASKED_EVERY
            client.key_value_set(f"{prefix}{jax.process_index()}", str(at))
            self._has_asked = True
        if step % _ASKED_EVERY:
            return False
        # A later request than the first one is met by the same checkpoint.
        asked_for = [int(text) for _, text in client.key_value_dir_get(prefix)]
        if not asked_for or step < min(asked_for):
            return False
        self._agreed += 1
        self._has_asked = self._is_save_asked = False
        return True

    def _install(self, number: int, handler: object) -> None:
        # Who ignores a signal, as nohup does, wants it ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            self._previous[number] = signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - a handler of ours

    def _remember_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop is not None:
            for installed in tuple(self._previous):
                self._give_back(installed)
            signal.raise_signal(number)
            return
        self._stop = number

    def _remember_save(self, _number: int, _frame: FrameType | None) -> None:
        self._is_save_asked = True

    def _give_back(self, number: int) -> None:
        handler = self._previous.pop(number)
        # None stands for a handler that was not installed from Python.
        signal.signal(number, signal.SIG_DFL if handler is None else handler)  # pyright: ignore[reportArgumentType]
