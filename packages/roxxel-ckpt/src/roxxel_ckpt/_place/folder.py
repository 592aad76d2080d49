"""The interface to the folder of one run's checkpoints.

The folder is on a disk (`roxxel_ckpt._place.disk`) or in a bucket
(`roxxel_ckpt._place.bucket`). In both, the package removes only files that it created.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from roxxel_ckpt._names import ABANDONED, listed
from roxxel_ckpt.errors import (
    CheckpointNotFoundError,
    CheckpointWriteError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_ckpt._integrity import FileDigest
    from roxxel_ckpt.contents import Files

_logger = logging.getLogger("roxxel_ckpt")


class Folder(Protocol):
    """The checkpoints of one run, and what a save or a restore does with them.

    Process 0 decides which steps exist: only process 0 calls `saving`, `marked`,
    `commit` and `bring_back`. `staging` is the local directory in which one process
    writes its files of one save.
    """

    # What to do if the processes do not see the same folder.
    not_shared_remedy: str
    # What to do if a local disk refuses the files of a save.
    staging_remedy: str

    def __str__(self) -> str:
        """Return the path or URL of the folder."""
        ...

    def check_usable(self) -> None:
        """Raise an error if this folder cannot hold checkpoints."""
        ...

    def check_has_no_misplaced_step(self) -> None:
        """Raise CheckpointNotFoundError if the steps seem to be in another folder.

        If this folder has no steps, they may be set aside. Or the folder may be a run,
        with the steps in its subfolder `checkpoints`, or may itself be a step.
        """
        ...

    def location(self, step: int) -> str:
        """Return the path or URL that names a step in messages."""
        ...

    def numbered(self) -> list[int]:
        """Return every step, whichever program wrote it, oldest first."""
        ...

    def steps(self) -> list[int]:
        """Return the finished steps that this package can read, oldest first."""
        ...

    def is_checkpoint(self, step: int) -> bool:
        """Return whether a step, which may be damaged, is a checkpoint."""
        ...

    def described(self) -> dict[int, Path]:
        """Return, for every finished step, a local directory with its description."""
        ...

    def step_path(self, step: int) -> Path:
        """Return a local directory with the description and the digests of a step."""
        ...

    def fetch(self, directory: Path, digests: Mapping[str, FileDigest]) -> bool:
        """Copy files of a step into the directory that `step_path` returned.

        Returns False if no copy is needed, because the directory is the step itself.
        """
        ...

    def find_missing(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first file of a step that is missing or has a wrong size."""
        ...

    def find_damage(
        self, directory: Path, digests: Mapping[str, FileDigest]
    ) -> str | None:
        """Describe the first damaged file of a step; None if all are sound."""
        ...

    def num_bytes(self, step: int) -> int:
        """Return the number of bytes of all files of a step."""
        ...

    def drop(self, directory: Path, *, keep: bool) -> None:
        """Remove the local copy `directory` of a step.

        With `keep`, a folder that keeps copies keeps this one and removes the others.
        """
        ...

    def tidy(self) -> None:
        """Remove what killed processes left, unless another program saves here."""
        ...

    def saving(self) -> AbstractContextManager[str]:
        """Be the only program that saves here; yield a unique name for a save.

        What killed processes left is removed. In a bucket, earlier programs can no
        longer save from now on.

        Raises:
            CheckpointWriteError: Another program saves here, or nothing can be saved.
        """
        ...

    def marked(self) -> AbstractContextManager[str]:
        """Yield the name of a mark that other processes check for; call in `saving`."""
        ...

    def sees(self, mark: str) -> bool:
        """Return whether this process sees the mark of process 0."""
        ...

    def aside(self) -> Folder:
        """Return the folder of the steps that were set aside."""
        ...

    def bring_back(self, step: int) -> list[int]:
        """Make a step that was set aside the newest; call it in `saving`.

        Of several such steps, the one that was set aside last is taken. This step and
        newer ones are set aside in exchange, so a restore uses the step that is back.

        Returns:
            The steps that were set aside.

        Raises:
            CheckpointNotFoundError: No step with this number is set aside.
        """
        ...

    def staging(self, step: int, attempt: str, process: int) -> Path:
        """Return a directory, which does not exist yet, for the files of a process."""
        ...

    def deliver(self, staging: Path) -> None:
        """Copy the files of this process to where the other processes see them."""
        ...

    def commit(
        self,
        staging: Path,
        step: int,
        text: str,
        *,
        digests: Sequence[int],
        base: int,
        drops: Collection[int],
        files: Files,
    ) -> list[int]:
        """Commit the files of all processes as a step; replace an existing step.

        Steps after `base` are from a run that this run replaces, so they are set aside.
        Afterwards, the steps `drops` and leftovers are deleted. What cannot be deleted
        is logged, and the next save tries again.

        Args:
            staging: What `staging` returned.
            step: The step.
            text: The description of the step.
            digests: CRC-32 of the file of digests that each process delivered.
            base: The step from which the run continues.
            drops: Steps that retention drops.
            files: The pieces of the run's files that go with the step; none on a disk.

        Returns:
            The steps that were set aside.
        """
        ...

    def settle(self, staging: Path, *, is_saved: bool, is_first: bool) -> None:
        """End a save: keep or remove what this process staged.

        Args:
            staging: What `staging` returned.
            is_saved: Whether the step was committed. If not, its files are removed.
            is_first: Whether this is process 0, which removes what all share.
        """
        ...


def only_set_aside(folder: Folder, steps: list[int]) -> CheckpointNotFoundError:
    """Return the error for a folder without steps whose steps are all set aside."""
    return CheckpointNotFoundError(
        f"{folder}: holds no step, but {listed(steps)} in {folder}/{ABANDONED}, so a "
        f"run would begin anew without a word; {how_to_bring_back(folder)}, or give "
        "another folder to begin anew"
    )


def not_set_aside(
    folder: Folder, step: int, held: list[int]
) -> CheckpointNotFoundError:
    """Return the error for a step that cannot be brought back; `held` are others."""
    return CheckpointNotFoundError(
        f"{folder}/{ABANDONED}: has no step {step}; it holds {listed(held)}"
    )


def cannot_hold_aside(folder: Folder) -> CheckpointWriteError:
    """Return the error for a save into a folder of steps that were set aside."""
    return CheckpointWriteError(
        f"{folder}: holds the steps that a run abandoned, so nothing is saved here; "
        "restore a step from here, and give checkpoint_path another folder to save"
    )


def how_to_bring_back(folder: Folder) -> str:
    """Return the command that brings back a step of this folder."""
    return f"`roxxel-ckpt bring-back {folder}@STEP` brings one of them back"


def not_delivered(folder: Folder, process: int) -> CheckpointWriteError:
    """Return the error for files of a process that process 0 does not see."""
    return CheckpointWriteError(
        f"the files of process {process} are not in {folder}, so the step could not be "
        f"restored; {folder.not_shared_remedy}"
    )


def try_to_delete(name: str, delete: Callable[[], None]) -> None:
    """Call `delete`; log a failure, because the next save tries again."""
    try:
        delete()
    except OSError as error:
        _logger.warning("%s: cannot be deleted (%s)", name, brief(error))
