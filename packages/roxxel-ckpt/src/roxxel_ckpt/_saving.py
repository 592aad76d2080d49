"""What one save does to the folder: before its arrays are written, and after.

Before: the folder is held against other processes, cleaned, and room made for the
step. After, in the background: what it says of itself, digests, its appearance under
its number, and the end of the steps that need not be kept.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from roxxel_ckpt import _integrity
from roxxel_ckpt._background import wait_for_others
from roxxel_ckpt._choice import listed
from roxxel_ckpt._description import metrics_of_all
from roxxel_ckpt._folder import ABANDONED
from roxxel_ckpt._processes import (
    Meeting,
    decided_by_first,
    is_first_process,
    next_serial,
)
from roxxel_ckpt.errors import CheckpointError, CheckpointWriteError, brief

if TYPE_CHECKING:
    from roxxel_ckpt._description import Description
    from roxxel_ckpt._folder import Folder
    from roxxel_ckpt._retention import Retention
    from roxxel_ckpt._store import Store

_logger = logging.getLogger("roxxel_ckpt")


def admit(
    folder: Folder,
    step: int,
    position: int | None,
    held: contextlib.ExitStack,
    *,
    force: bool,
) -> Meeting | None:
    """Make room for a step.

    Args:
        folder: Where it goes.
        step: The step.
        position: Step that the live state descends from; None when it is not known.
        held: Takes the lock of the folder, to be released when the save has ended.
        force: Replace the step if it exists.

    Returns:
        Where the processes meet during the save; None when the step is there already.

    Raises:
        CheckpointWriteError: The folder cannot take the step.
    """

    def make_room() -> int:
        wait_for_others(folder)
        folder.create()
        if not held.enter_context(folder.lock()):
            raise CheckpointWriteError(
                f"{folder}: another process is saving a checkpoint here; "
                "give every run a folder of its own"
            )
        try:
            folder.clean()
            made = _make_room(folder, step, position, force=force)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointWriteError(
                f"{folder}: step {step} cannot be saved ({brief(error)}); "
                "earlier checkpoints are untouched"
            ) from error
        return next_serial() if made else 0

    serial = decided_by_first(make_room)
    return Meeting(serial) if serial else None


def _make_room(folder: Folder, step: int, position: int | None, *, force: bool) -> bool:
    numbered = folder.numbered()
    ours = [number for number in numbered if folder.is_ours(number)]
    if step in numbered and step not in ours:
        raise CheckpointWriteError(
            f"{folder.step_path(step)}: is there and is no checkpoint of "
            "roxxel-ckpt; give checkpoint_path a folder of its own"
        )
    base = step if position is None or step < position else position
    if step in ours and step <= base and not force:
        return False
    abandoned = [number for number in ours if number > base]
    for number in abandoned:
        folder.abandon(number)
    if abandoned:
        _logger.warning(
            "%s: the run goes on from step %d, so %s moved to %s",
            folder,
            base,
            listed(abandoned),
            folder.path / ABANDONED,
        )
    if not folder.is_local and step in ours and step not in abandoned:
        folder.delete(step)
    return True


def begin(
    store: Store,
    folder: Folder,
    step: int,
    meeting: Meeting,
    arrays: dict[str, Any],
) -> None:
    """Have the arrays of a step written; return when they may be donated.

    Args:
        store: What writes them.
        folder: Where they go.
        step: The step.
        meeting: Where the processes meet meanwhile.
        arrays: By name.

    Raises:
        CheckpointWriteError: The write cannot begin.
    """
    try:
        store.start(folder.write_path(step), arrays, meeting)
    except Exception as error:
        meeting.fail(error)
        raise CheckpointWriteError(
            f"{folder}: the save of step {step} cannot begin ({brief(error)}); "
            "earlier checkpoints are untouched"
        ) from error


def give_up(
    store: Store, folder: Folder, meeting: Meeting, error: BaseException
) -> None:
    """End a save whose arrays are being written, because of an error of the caller."""
    with contextlib.suppress(Exception):
        store.wait()
    store.close()
    meeting.fail(error)
    # What cannot be removed is no step, and the next save tries again.
    with contextlib.suppress(OSError):
        if is_first_process():
            folder.clean()


def finish(
    store: Store,
    folder: Folder,
    step: int,
    meeting: Meeting,
    description: Description,
    retention: Retention,
    timeout_s: float,
) -> None:
    """Do what a save still needs once its caller is back at work.

    Returns, or raises, on all processes alike.
    """
    try:
        store.wait()
        meeting.wait_for_all(timeout_s)
        if is_first_process():
            place = folder.write_path(step)
            description.write(place)
            _integrity.write_digests(place)
            folder.publish(step)
            _prune(folder, retention)
    except BaseException as error:
        meeting.fail(error)
        raise
    meeting.wait_for_all(timeout_s)


def _prune(folder: Folder, retention: Retention) -> None:
    metrics = metrics_of_all(folder)
    for old in sorted(metrics.keys() - retention.kept(metrics)):
        try:
            folder.delete(old)
        except OSError as error:
            _logger.warning(
                "%s: cannot be deleted (%s)", folder.step_path(old), brief(error)
            )
