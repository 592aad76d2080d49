"""One save on its way to the disk, waited for with a bound, also at exit."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING

from roxxel_ckpt.errors import (
    CheckpointTimeoutError,
    CheckpointWriteError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from roxxel_ckpt._folder import Folder

_logger = logging.getLogger("roxxel_ckpt")
FINISHES_AT_EXIT = not (3, 12) <= sys.version_info < (3, 12, 3)
"""Whether a save in flight can still be finished when the program has come to its end.

Orbax starts threads for it, which Python 3.12.0 to 3.12.2 refuse from that moment on:
https://github.com/python/cpython/issues/113964.
"""

_in_flight: set[BackgroundSave] = set()
_exit_hook_lock = threading.Lock()
_has_exit_hook = False


@dataclasses.dataclass(frozen=True)
class SaveRecord:
    """How long a save took.

    Attributes:
        step: Its step.
        blocking_s: Seconds for which `save` kept its caller.
        total_s: Seconds until the checkpoint was complete; None as long as it is not.
    """

    step: int
    blocking_s: float
    total_s: float | None


class BackgroundSave:
    """A save that goes on in a thread of its own.

    Args:
        folder: Where it goes.
        step: Its step.
        timeout_s: Longest that anybody waits for it, in seconds.
        finish: What is left to do once the caller has his arrays back; runs in the
            thread.
        blocking_s: How long the caller was kept, in seconds.
        started_at: `time.perf_counter()` when the save was asked for.

    """

    def __init__(
        self,
        folder: Folder,
        step: int,
        timeout_s: float,
        finish: Callable[[], None],
        *,
        blocking_s: float,
        started_at: float,
    ) -> None:
        self.folder, self.step = folder, step
        self._blocking_s = blocking_s
        self._total_s: float | None = None
        self._timeout_s, self._finish = timeout_s, finish
        self._started_at = started_at
        self._error: BaseException | None = None
        self._ended = threading.Event()
        _install_exit_hook()
        _in_flight.add(self)
        # A daemon, so that a disk that hangs cannot keep the interpreter from ending;
        # the exit hook waits for it instead.
        threading.Thread(
            target=self._run, name=f"roxxel-ckpt-save-{step}", daemon=True
        ).start()

    def _run(self) -> None:
        try:
            self._finish()
            self._total_s = time.perf_counter() - self._started_at
        except BaseException as error:  # noqa: BLE001 - raised again by wait()
            self._error = error
        finally:
            self._ended.set()
            _in_flight.discard(self)

    @property
    def record(self) -> SaveRecord:
        """How long it took so far, and in all once the checkpoint is complete."""
        return SaveRecord(self.step, self._blocking_s, self._total_s)

    @property
    def has_failed(self) -> bool:
        """Whether it ended without a checkpoint."""
        return self.has_ended and self._error is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen, for good or bad."""
        return self._ended.is_set()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk.

        Raises:
            CheckpointTimeoutError: It is not there after `timeout_s` seconds. The
                write goes on, so waiting again is possible.
            CheckpointWriteError: It failed. Earlier checkpoints are untouched.
        """
        if not self._ended.wait(self._timeout_s):
            raise CheckpointTimeoutError(self._too_slow())
        error = self._error
        if isinstance(error, TimeoutError):
            raise CheckpointTimeoutError(self._too_slow()) from error
        if error is not None:
            raise CheckpointWriteError(
                f"{self.folder}: the save of step {self.step} failed "
                f"({brief(error)}); earlier checkpoints are untouched"
            ) from error

    def _too_slow(self) -> str:
        return (
            f"{self.folder}: the save of step {self.step} was not done after "
            f"{self._timeout_s:g} seconds; earlier checkpoints are untouched, so mend "
            "the storage or give a larger timeout"
        )


def wait_for_others(folder: Folder) -> None:
    """Wait for saves into a folder that another object of this process started."""
    for save in list(_in_flight):
        if save.folder.path == folder.path:
            save.wait()


def _install_exit_hook() -> None:
    """Have saves in flight finished when the program ends without `close()`.

    `atexit` comes too late: by then `concurrent.futures`, which Orbax uses, takes no
    more work. The hooks of `threading` run before, the last one registered first.
    """
    global _has_exit_hook  # noqa: PLW0603 - one hook for the process
    with _exit_hook_lock:
        if _has_exit_hook:
            return
        _has_exit_hook = True
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_finish_at_exit)


def _finish_at_exit() -> None:
    for save in sorted(_in_flight, key=lambda save: save.step):
        try:
            save.wait()
        except (CheckpointTimeoutError, CheckpointWriteError):
            _logger.error(  # noqa: TRY400 - one sentence, for the cause is the exit
                "%s: step %d was not saved, because the program ended before its "
                "background save did; the checkpoint before it stands, so use "
                "`with Checkpointer(...)` or call close()",
                save.folder,
                save.step,
            )
