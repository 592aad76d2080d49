"""The interface to the folder of one run's checkpoints.

The folder is on a disk (`roxxel_ckpt._place.disk`) or in a bucket
(`roxxel_ckpt._place.bucket`). In both, the package removes only files that it created.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from roxxel_store.swap import Manifest

    from roxxel_ckpt._integrity import LocalFiles
    from roxxel_ckpt.contents import Files


class Step(Protocol):
    """The files of one step, in its directory on a disk or as objects in a bucket.

    Two steps are equal if they have the same files. A replaced step differs from its
    replacement, except in one directory of a disk.
    """

    @property
    def number(self) -> int:
        """The number of updates done."""
        ...

    @property
    def location(self) -> str:
        """The path or URL that names the step in messages."""
        ...

    @property
    def state(self) -> Literal["finished", "unfinished", "foreign"]:
        """Whether the step was committed; it may have been damaged since.

        A directory that this package did not write is foreign. A bucket lists finished
        steps only.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return the content of a sealed file, which may be damaged."""
        ...

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of every file, by its path in the step."""
        ...

    def opened(self) -> LocalFiles:
        """Return the files on this machine; close them after use."""
        ...


class Folder(Protocol):
    """The checkpoints of one run: which steps exist, and how to save one.

    Process 0 decides which steps exist: only process 0 calls `saving`, `commit` and
    `delete`. For a save, it calls `saving`; then every process fills the directory
    that `staged` yields and calls `deliver`; and process 0 commits.
    """

    # What to do if the processes do not see the same folder.
    not_shared_remedy: str
    # What to do if a local disk refuses the files of a save.
    staging_remedy: str
    # The sound descriptions that `descriptions` read last: a save needs those of all
    # steps, and would read and parse one file more for each step that was kept.
    described: dict[Step, Any]

    def __str__(self) -> str:
        """Return the path or URL of the folder."""
        ...

    def check_not_lost(self) -> None:
        """Raise CheckpointDamagedError if there are steps that no reader can find."""
        ...

    def steps(self, only: Collection[int] | None = None) -> dict[int, Step]:
        """Return every step, whichever program wrote it, by its number, oldest first.

        With `only`, look for these steps alone. That finds a step of another process at
        once, while a network file system may list it later.
        """
        ...

    def turn(self) -> Manifest:
        """Return whose turn to save it is; see `saving`.

        Raises:
            CheckpointDamagedError: The manifest is damaged.
        """
        ...

    def saving(self, seen: Manifest | None = None) -> AbstractContextManager[str]:
        """Become the program that saves here; yield a unique name for a save.

        Earlier programs can no longer save from now on, and what killed ones left is
        removed. A program whose turn is over may begin another if it passes the turn
        that it has `seen`: before it restored a step, or just now.

        Raises:
            CheckpointWriteError: A later program has begun to save here, or nothing can
                be saved.
            CheckpointTimeoutError: Another thread or program does not end in time.
        """
        ...

    def sees(self, attempt: str) -> bool:
        """Return whether this process sees that process 0 has begun to save here.

        `attempt` is the name that `saving` has given to process 0.
        """
        ...

    def delete(self, step: int) -> None:
        """Delete a step of this package; call it in `saving`."""
        ...

    def staged(
        self, step: int, attempt: str, process: int
    ) -> AbstractContextManager[Path]:
        """Yield a directory, which does not exist yet, for the files of a process.

        Leave the context after the commit. After an error, this process's files of the
        save are removed, and process 0 removes the shared files.
        """
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
        damaged: Sequence[Step],
        drops: Collection[int],
        files: Files,
    ) -> list[str]:
        """Commit the files of all processes as a step; replace an existing step.

        Damaged steps are kept under names that no reader takes for a step. Afterwards,
        the steps `drops` and leftovers are deleted. What cannot be deleted is logged,
        and the next save tries again.

        Args:
            staging: What `staged` yielded.
            step: The step.
            text: The description of the step.
            digests: CRC-32 of the file of digests that each process delivered.
            damaged: Steps that a restore could not use.
            drops: Steps that retention drops.
            files: The pieces of the run's files that go with the step; none on a disk.

        Returns:
            Where the damaged steps are now.
        """
        ...
