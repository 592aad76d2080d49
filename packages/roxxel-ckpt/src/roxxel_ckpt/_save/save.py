"""One save: prepare the folder, then write, digest and commit on a thread.

`begin_save` prepares the folder on process 0. A `Save` runs on every process. Its
thread copies arrays on their devices, if there is room, and to the host, writes and
digests files in the staging directory of this process, then delivers the files to the
folder: by renames on a shared disk, by uploads in a bucket. After all processes have
delivered their files, process 0 commits the step, with the pieces of the run's files
that `files` returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import threading
import time
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from roxxel_store import roxxel_command

from roxxel_ckpt._arrays.layout import STATE
from roxxel_ckpt._integrity import digest_files
from roxxel_ckpt._place.description import (
    crc_of,
    descriptions,
    digests_file,
    listed,
    sealed,
)
from roxxel_ckpt.coordination import (
    Channel,
    at_exit,
    process_index,
)
from roxxel_ckpt.devices import NoRoomError, copied
from roxxel_ckpt.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CheckpointUnreadableError,
    CheckpointWriteError,
    brief,
    reason_in_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from roxxel_store.swap import Manifest

    from roxxel_ckpt._arrays.layout import LeafSpec
    from roxxel_ckpt._place.description import Description, Retention
    from roxxel_ckpt._place.folder import Folder, Step
    from roxxel_ckpt.contents import Files

_logger = logging.getLogger("roxxel_ckpt")
_TOLD_AFTER_S = 60.0
"""Wait for a save after which a line says that the program waits: a bucket may give no
answer for minutes, and a single process has nobody else who could tell.
"""
_in_flight: set[Save] = set()


@dataclasses.dataclass(frozen=True)
class SaveRecord:
    """How long a save took.

    Attributes:
        step: The step that was saved.
        blocking_s: Seconds for which `save` blocked its caller.
        is_snapshot: Whether the arrays were copied on their devices first, so that
            `save` did not wait for the copy to the host.
        total_s: Seconds until the checkpoint was complete; None before that.

    Example:
        >>> SaveRecord(10, blocking_s=0.5, is_snapshot=False, total_s=2.0).total_s
        2.0
    """

    step: int
    blocking_s: float
    is_snapshot: bool
    total_s: float | None


def begin_save(
    folder: Folder,
    channel: Channel,
    step: int,
    base: int,
    damaged: Collection[Step],
    prepare: Callable[[], bool],
    held: contextlib.ExitStack,
    *,
    force: bool,
    seen: Manifest | None,
    timeout_s: float,
) -> tuple[str, bool] | None:
    """Return the name of this attempt to save a step; None if the step exists.

    Also return whether all processes copy on the devices first, as `prepare` says.
    Every process makes this call. The run has saved or restored step `base`; it could
    not restore the newer steps `damaged`. `seen` is the turn that it has seen before.
    On process 0, closing `held` lets other threads save.
    """

    def admit(snapshots: list[bool]) -> tuple[str, bool] | None:
        try:
            attempt = _only_writer(folder, held, seen)
            is_new = _is_new(folder, step, base, damaged, force=force)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise _cannot_begin(folder, step, error) from error
        return (attempt, all(snapshots)) if is_new else None

    return channel.agree(f"save step {step}", prepare, admit, timeout_s)


def check_shared(
    folder: Folder,
    channel: Channel,
    seen: Callable[[], Manifest | None],
    timeout_s: float,
) -> None:
    """Become the writer, and check that every process sees what process 0 writes.

    Every process makes this call. `seen` returns the turn that the program has seen
    before. If one process does not see the mark of process 0, all processes raise a
    CheckpointWriteError.
    """
    with contextlib.ExitStack() as held:

        def write(_: list[None]) -> str:
            return _only_writer(folder, held, seen())

        attempt = channel.agree("write to the folder", lambda: None, write, timeout_s)
        blind: Sequence[int] = channel.agree(
            "read the folder",
            lambda: folder.sees(attempt),
            lambda sees: [index for index, ok in enumerate(sees) if not ok],
            timeout_s,
        )
    if blind:
        raise CheckpointWriteError(
            f"{folder}: process {blind[0]} does not see the file that process 0 wrote "
            f"here, so no checkpoint could be restored; {folder.not_shared_remedy}"
        )


def _is_new(
    folder: Folder, step: int, base: int, damaged: Collection[Step], *, force: bool
) -> bool:
    """Return whether a step may be saved; False if it exists."""
    steps = folder.steps()
    ours = [number for number, each in steps.items() if each.state != "foreign"]
    newer = [n for n in ours if n > min(step, base) and steps[n] not in damaged]
    if step in steps and step not in ours:
        raise CheckpointWriteError(
            f"{steps[step].location}: exists and is not a checkpoint of "
            "roxxel-ckpt; give checkpoint_path a folder of its own"
        )
    if newer:
        command = roxxel_command("ckpt delete")
        raise CheckpointWriteError(
            f"{folder}: holds {listed(newer)}, and step {step} would be saved after "
            f"step {base}, so the folder would hold two histories; branch from step "
            f"{base} into another folder, or delete {listed(newer)} with `{command}`"
        )
    return force or step not in ours or steps[step] in damaged


def _only_writer(
    folder: Folder, held: contextlib.ExitStack, seen: Manifest | None
) -> str:
    """Wait for this process's other saves into the folder, and keep new ones out."""
    for save in list(_in_flight):
        if str(save.folder) == str(folder):
            save.wait()
    return held.enter_context(folder.saving(seen))


class Save:
    """A save of one step, on its own thread.

    `attempt` is a name that only this save has, so that a late process does not write
    into the next save. No other save uses `channel`. The damaged steps are kept under
    other names. If `files` raises an error on process 0, the save fails. `was_raised`
    is True once the error of this save was raised.
    """

    def __init__(
        self,
        folder: Folder,
        description: Description,
        specs: Mapping[str, LeafSpec],
        attempt: str,
        retention: Retention,
        timeout_s: float,
        damaged: Collection[Step],
        files: Callable[[], Files],
    ) -> None:
        self.folder, self.step = folder, description.step
        self.channel = Channel(f"save/{attempt}")
        self.was_raised = False
        self._description, self._specs = description, specs
        self._attempt = attempt
        self._staged = contextlib.ExitStack()
        self._retention, self._timeout_s = retention, timeout_s
        self._held = contextlib.ExitStack()
        self._damaged, self._files = damaged, files
        self._started_at = self._blocking_s = 0.0
        self._total_s: float | None = None
        self._is_snapshot = False
        # Done once the caller may donate the arrays.
        self._free: Future[None] = Future()
        self.is_on_host = threading.Event()
        self._done: Future[None] = Future()

    def start(
        self,
        arrays: dict[str, Any],
        started_at: float,
        held: contextlib.ExitStack,
        *,
        on_devices: bool,
    ) -> None:
        """Start the thread; return when the arrays may be donated.

        With `on_devices`, that is as soon as their devices hold a copy; otherwise, when
        the host does. `started_at` is the value of `time.perf_counter()` when `save`
        was called. When the save ends, it closes `held`, which releases the folder's
        lock.
        """
        self._started_at, self._held = started_at, held
        # `concurrent.futures`, which Orbax uses, registers a hook when it is imported,
        # and refuses work after this hook has run.
        importlib.import_module("concurrent.futures.thread")
        at_exit(_finish_at_exit)
        _in_flight.add(self)
        # The thread also copies to the host, because Orbax starts an event loop and the
        # main thread of a notebook already runs one. The thread is a daemon so that a
        # hanging disk cannot block the program's exit for longer than `timeout_s`.
        thread = threading.Thread(
            target=self._run,
            # A thread references its arguments until it ends, so the arrays are in a
            # list that `_write` empties.
            args=(partial(self._write, [arrays], on_devices=on_devices),),
            name=f"roxxel-ckpt-save-{self.step}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            self._free.set_exception(error)
            # Run the save here: the other processes wait for the error that it reports.
            self._run(self._free.result)
        error = self._free.exception()
        self._blocking_s = time.perf_counter() - started_at
        if error is not None:
            self.was_raised = True
            raise _cannot_begin(self.folder, self.step, error) from error

    @property
    def record(self) -> SaveRecord:
        """How long the save has taken so far."""
        return SaveRecord(self.step, self._blocking_s, self._is_snapshot, self._total_s)

    @property
    def has_ended(self) -> bool:
        """Whether the save has succeeded or failed."""
        return self._done.done()

    def wait(self) -> None:
        """Wait until the checkpoint is complete; raise the save's error at most once.

        After a CheckpointTimeoutError the save continues; `wait` may be called again.
        """
        try:
            error = self._ended()
        except TimeoutError:
            raise self._too_slow("the write continues") from None
        if error is None or self.was_raised:
            return
        self.was_raised = True
        if isinstance(error, TimeoutError):
            raise self._too_slow(brief(error)) from error
        raise CheckpointWriteError(
            f"{self.folder}: the save of step {self.step} failed ({brief(error)}); "
            f"earlier checkpoints are unchanged{_remedy(self.folder, error)}"
        ) from error

    def _ended(self) -> BaseException | None:
        first_s = min(self._timeout_s, _TOLD_AFTER_S)
        with contextlib.suppress(TimeoutError):
            return self._done.exception(first_s)
        left_s = self._timeout_s - first_s
        if left_s > 0:
            _logger.warning(
                "%s: waiting for the save of step %d, which is not complete after "
                "%g s; the wait ends after %g s more",
                self.folder,
                self.step,
                first_s,
                left_s,
            )
        return self._done.exception(left_s)

    def _run(self, write: Callable[[], Any]) -> None:
        failure: BaseException | None = None
        try:
            with self._staged:
                self._agree(write)
            self._total_s = time.perf_counter() - self._started_at
        except BaseException as error:  # noqa: BLE001 - raised by wait()
            failure = error
        self._held.close()
        _in_flight.discard(self)
        if failure is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(failure)

    def _agree(self, write: Callable[[], Any]) -> None:
        """Commit the step if `write` succeeds on all processes; else raise on all."""
        call = f"commit step {self.step}"
        self.channel.agree(call, write, self._commit, self._timeout_s)

    def _write(self, box: list[dict[str, Any]], *, on_devices: bool) -> int:
        """Write and digest the files of this process; return the digests' CRC-32."""
        try:
            if on_devices:
                self._copy_on_devices(box)
            self._staging = self._staged.enter_context(
                self.folder.staged(self.step, self._attempt, process_index())
            )
            (self._staging / STATE).mkdir(parents=True)
            from roxxel_ckpt._arrays import orbax

            wait_for_files = orbax.start_writing(self._staging, box.pop())
        except BaseException as error:
            if not self._free.done():
                self._free.set_exception(error)
            raise
        finally:
            self.is_on_host.set()
        if not self._free.done():
            self._free.set_result(None)
        wait_for_files()
        digests = digest_files(self._staging)
        path = self._staging / digests_file(process_index())
        path.parent.mkdir()
        path.write_text(sealed(digests))  # flushed with all files, by `deliver`
        self.folder.deliver(self._staging)
        return crc_of(digests)

    def _copy_on_devices(self, box: list[dict[str, Any]]) -> None:
        """Replace the arrays by copies, if the devices have room and no other copy."""
        # Copies are freed once they are on the host. A hanging save must keep no other.
        if not all(other.is_on_host.is_set() for other in _in_flight - {self}):
            return
        with contextlib.suppress(NoRoomError):
            box[0] = copied(box[0])
            self._is_snapshot = True
            self._free.set_result(None)

    def _commit(self, digests: list[int]) -> None:
        """Commit the step on process 0.

        `digests` has the CRC-32 of each process's file of digests.
        """
        unreadable: list[CheckpointUnreadableError] = []
        damaged = self._still_damaged()
        found = descriptions(self.folder, unreadable)
        for each in damaged:
            found.pop(each.number, None)
        now = time.time()
        found[self.step] = description = dataclasses.replace(
            self._description,
            digests=tuple(digests),
            saved_at=now,
            best=self._retention.best_rule(found),
            is_permanent=self._retention.makes_permanent(found, self.step, now),
        )
        kept = found.keys() if unreadable else self._retention.kept(found)
        places = self.folder.commit(
            self._staging,
            self.step,
            description.to_json(self._specs),
            digests=digests,
            damaged=damaged,
            drops=found.keys() - kept,
            files=self._files(),
        )
        for each, place in zip(damaged, places, strict=True):
            _logger.warning(
                "%s: step %d is damaged, so it is now kept as %s, where no restore "
                "uses it; delete it if you do not need it",
                self.folder,
                each.number,
                place,
            )
        for problem in unreadable:
            # Without its description, an old step may be the best or permanent.
            _logger.warning("%s; no old checkpoint was deleted", problem)

    def _still_damaged(self) -> list[Step]:
        """Return the damaged steps that an earlier save has not renamed."""
        steps = self.folder.steps()
        return [
            each
            for each in sorted(self._damaged, key=lambda step: step.number)
            if steps.get(each.number) == each and each.state != "foreign"
        ]

    def _too_slow(self, reason: str) -> CheckpointTimeoutError:
        return CheckpointTimeoutError(
            f"{self.folder}: the save of step {self.step} did not end within "
            f"{self._timeout_s:g} seconds ({reason}) and earlier checkpoints are "
            "unchanged; repair the storage or give a larger timeout"
        )


def _cannot_begin(
    folder: Folder, step: int, error: BaseException
) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"{folder}: the save of step {step} cannot begin ({brief(error)}); "
        f"earlier checkpoints are unchanged{_remedy(folder, error)}"
    )


def _remedy(folder: Folder, error: BaseException) -> str:
    """Return a remedy for an error of a local disk; other errors contain one."""
    # TensorStore, which writes the arrays, raises no OSError.
    is_of_system = isinstance(error, OSError) or reason_in_text(error) is not None
    is_of_disk = is_of_system and not isinstance(error, CheckpointError)
    return f"; {folder.staging_remedy}" if is_of_disk else ""


def _finish_at_exit() -> None:
    """Finish saves in flight when the program ends without `close()`."""
    for save in sorted(_in_flight, key=lambda save: save.step):
        try:
            save.wait()
        except (CheckpointTimeoutError, CheckpointWriteError):
            _logger.error(  # noqa: TRY400 - the cause is the exit, not this line
                "%s: step %d was not saved, because the program ended before the "
                "background save did, and earlier checkpoints are unchanged; use "
                "`with Checkpointer(...)` or call close()",
                save.folder,
                save.step,
            )
