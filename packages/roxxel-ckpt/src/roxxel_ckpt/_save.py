"""One save: room is made for the step, then a thread writes, digests and commits it.

`make_room` runs on process 0 before a save. A `Save` runs on every process: its thread
copies the arrays to the host, waits for the description, and writes the files of this
process. When every process has written, process 0 commits the step.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import _orbax
from roxxel_ckpt._description import Description, descriptions
from roxxel_ckpt._folder import ABANDONED, STATE, Folder, digests_file, write_synced
from roxxel_ckpt._integrity import crc_of, digest_files, sealed
from roxxel_ckpt._processes import is_first_process, process_index
from roxxel_ckpt._publish import DiskAttempt
from roxxel_ckpt._restore import listed
from roxxel_ckpt.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CheckpointWriteError,
    brief,
)

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping

    from roxxel_ckpt._description import LeafSpec
    from roxxel_ckpt._processes import Channel
    from roxxel_ckpt._retention import Retention

_logger = logging.getLogger("roxxel_ckpt")
_in_flight: set[Save] = set()
_exit_hook_lock = threading.Lock()
_has_exit_hook = False


@dataclasses.dataclass(frozen=True)
class SaveRecord:
    """How long a save took.

    Attributes:
        step: Its step.
        blocking_s: Seconds for which `save` blocked its caller.
        total_s: Seconds until the checkpoint was complete; None before that.
    """

    step: int
    blocking_s: float
    total_s: float | None


def make_room(folder: Folder, step: int, base: int, *, force: bool) -> bool:
    """Prepare a locked folder for a step; return False when the step exists.

    Args:
        folder: The folder of the checkpoints.
        step: The step to save.
        base: Newer steps belong to an abandoned future and are moved to `abandoned/`.
        force: Replace the step if it exists.

    Raises:
        CheckpointWriteError: The folder cannot hold the step.
    """
    try:
        folder.clean()
        numbered = folder.numbered()
        ours = [number for number in numbered if folder.is_ours(number)]
        if step in numbered and step not in ours:
            raise CheckpointWriteError(
                f"{folder.step_path(step)}: exists and is not a checkpoint of "
                "roxxel-ckpt; give checkpoint_path a folder of its own"
            )
        if step in ours and step <= base and not force:
            return False
        abandoned = [number for number in ours if number > base]
        for number in abandoned:
            folder.abandon(number)
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise _cannot_begin(folder, step, error) from error
    if abandoned:
        _logger.warning(
            "%s: the run goes on from step %d, so %s moved to %s",
            folder,
            base,
            listed(abandoned),
            folder.path / ABANDONED,
        )
    return True


class Save:
    """A save of one step, in a thread of its own.

    Args:
        folder: The folder of the checkpoints.
        step: The step.
        attempt: Name of this attempt, the same on every process.
        channel: Of this attempt.
        retention: Which steps stay after the commit.
        timeout_s: Longest wait for this save or for another process, in seconds.
        held: Closed when the save has ended.
        started_at: `time.perf_counter()` at the begin of the save.

    Attributes:
        folder: The folder of the checkpoints.
        step: The step.
        channel: Of this attempt.
        was_raised: Whether the caller knows already that this save failed.
    """

    def __init__(
        self,
        folder: Folder,
        step: int,
        attempt: str,
        channel: Channel,
        retention: Retention,
        timeout_s: float,
        *,
        held: contextlib.ExitStack,
        started_at: float,
    ) -> None:
        self.folder, self.step, self._retention = folder, step, retention
        self._attempt = DiskAttempt(folder, step, attempt, process_index())
        self.channel = channel
        self.was_raised = False
        self._timeout_s, self._held = timeout_s, held
        self._started_at = started_at
        self._blocking_s = 0.0
        self._total_s: float | None = None
        self._copied: Future[None] = Future()
        self._described: Future[tuple[Description, Mapping[str, LeafSpec]]] = Future()
        self._done: Future[None] = Future()

    def start(self, arrays: dict[str, Any]) -> None:
        """Start the thread; return when the arrays may be donated.

        The thread waits for `describe` or `give_up` after that.

        Raises:
            CheckpointWriteError: The write cannot begin.
        """
        _install_exit_hook()
        _in_flight.add(self)
        # A daemon: a hanging disk must not keep the interpreter from ending. The exit
        # hook waits for the thread instead.
        threading.Thread(
            target=self._run,
            # A thread keeps its arguments until it ends, so a list passes the arrays.
            args=([arrays],),
            name=f"roxxel-ckpt-save-{self.step}",
            daemon=True,
        ).start()
        error = self._copied.exception()
        if error is not None:
            self.was_raised = True
            raise _cannot_begin(self.folder, self.step, error) from error

    def describe(self, description: Description, specs: Mapping[str, LeafSpec]) -> None:
        """Let the thread commit the step with this description."""
        self._blocking_s = time.perf_counter() - self._started_at
        self._described.set_result((description, specs))

    def give_up(self, error: BaseException) -> None:
        """Let the thread end the save on every process, for an error of the caller."""
        self.was_raised = True
        self._described.set_exception(error)

    @property
    def record(self) -> SaveRecord:
        """How long the save took so far."""
        return SaveRecord(self.step, self._blocking_s, self._total_s)

    @property
    def has_ended(self) -> bool:
        """Whether the thread has done everything, successful or not."""
        return self._done.done()

    def wait(self) -> None:
        """Wait until the checkpoint is complete.

        Raises:
            CheckpointTimeoutError: It is not complete after `timeout_s` seconds. The
                write goes on, so waiting again is possible.
            CheckpointWriteError: The save failed, and the caller does not know it yet.
        """
        try:
            error = self._done.exception(self._timeout_s)
        except TimeoutError:
            raise self._too_slow("the write goes on") from None
        if error is None or self.was_raised:
            return
        self.was_raised = True
        if isinstance(error, TimeoutError):
            raise self._too_slow(brief(error)) from error
        raise CheckpointWriteError(
            f"{self.folder}: the save of step {self.step} failed ({brief(error)}); "
            "earlier checkpoints are unchanged"
        ) from error

    def _run(self, box: list[dict[str, Any]]) -> None:
        failure: BaseException | None = None
        wait_for_files: Callable[[], None] | None = None
        try:
            self._attempt.create()
            state = self._attempt.staging / STATE
            state.mkdir()
            wait_for_files = _orbax.start_writing(state, box.pop())
            self._copied.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised by start()
            self._copied.set_exception(error)
        try:
            self.channel.agree(
                f"commit step {self.step}",
                lambda: self._publish(wait_for_files),
                self._commit,
                self._timeout_s,
            )
            self._total_s = time.perf_counter() - self._started_at
        except BaseException as error:  # noqa: BLE001 - raised by wait()
            failure = error
            if is_first_process():
                self._attempt.discard()
        self._held.close()
        _in_flight.discard(self)
        if failure is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(failure)

    def _publish(self, wait_for_files: Callable[[], None] | None) -> int:
        """Finish and digest the files of this process; return the digests' CRC-32."""
        error = self._copied.exception() or self._described.exception()
        if wait_for_files is not None:
            wait_for_files()
        if error is not None:
            raise _as_exception(error)
        staging = self._attempt.staging
        digests = digest_files(staging)
        path = staging / digests_file(process_index())
        path.parent.mkdir()
        write_synced(path, sealed(digests))
        self._attempt.publish()
        return crc_of(digests)

    def _commit(self, digests: list[int]) -> None:
        """Commit the step on process 0, then delete the steps that need not stay."""
        description, specs = self._described.result()
        description = dataclasses.replace(
            description, digests=tuple(digests), saved_at=time.time()
        )
        self._attempt.commit(description.to_json(specs))
        found = descriptions(self.folder)
        for old in sorted(found.keys() - self._retention.kept(found)):
            try:
                self.folder.delete(old)
            except OSError as error:
                _logger.warning(
                    "%s: cannot be deleted (%s)",
                    self.folder.step_path(old),
                    brief(error),
                )

    def _too_slow(self, reason: str) -> CheckpointTimeoutError:
        return CheckpointTimeoutError(
            f"{self.folder}: the save of step {self.step} was not done after "
            f"{self._timeout_s:g} seconds ({reason}); earlier checkpoints are "
            "unchanged, so repair the storage or give a larger timeout"
        )


def wait_for_others(folder: Folder) -> None:
    """Wait for saves into a folder that another object of this process started."""
    for save in list(_in_flight):
        if save.folder.path == folder.path:
            save.wait()


def _as_exception(error: BaseException) -> Exception:
    """Return an error that an agreement passes on, also for a KeyboardInterrupt."""
    return error if isinstance(error, Exception) else CheckpointError(brief(error))


def _cannot_begin(
    folder: Folder, step: int, error: BaseException
) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"{folder}: the save of step {step} cannot begin ({brief(error)}); "
        "earlier checkpoints are unchanged"
    )


def _install_exit_hook() -> None:
    """Finish saves in flight when the program ends without `close()`.

    `atexit` runs too late: `concurrent.futures`, which Orbax uses, accepts no work by
    then. Hooks of `threading` run before, and the hook registered last runs first.
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
            _logger.error(  # noqa: TRY400 - the cause is the exit, not this line
                "%s: step %d was not saved, because the program ended before its "
                "background save did; the checkpoint before it is unchanged, so use "
                "`with Checkpointer(...)` or call close()",
                save.folder,
                save.step,
            )
