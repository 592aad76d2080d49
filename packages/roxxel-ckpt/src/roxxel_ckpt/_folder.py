"""Where the checkpoints of one run lie, and how one appears and goes away.

Step `k` lies in `<folder>/<k>/`. On a local disk it is written beside that place, in
`<k>.roxxel-staged`, and renamed once it is whole and its digests are in it: so a step
that can be seen is complete. A step goes away by a rename first, too, so that a process
killed half-way through a deletion leaves no half-deleted step behind. Object stores
cannot rename, so there a step is written in its place and Orbax's own marker says
whether it is complete.

Only names that this module makes are ever removed: other files in the folder are the
user's.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from etils import epath

from roxxel_ckpt.errors import CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Generator

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no advisory locks of this kind
    fcntl = None

META_FILE = "meta/metadata"
TREE_FILE = "tree/metadata"
STATE_ITEM = "state"
DIGESTS_FILE = "digests.json"
ABANDONED = "abandoned"
_STAGED = ".roxxel-staged"
_REPLACED = ".roxxel-replaced"
_DELETED = ".roxxel-deleted"
_LEFTOVER = re.compile(r"[0-9]+\.roxxel-(staged|deleted)(\.orbax-checkpoint-tmp.*)?")
_ABOUT_TO_BE_REPLACED = re.compile(r"([0-9]+)\.roxxel-replaced")
_STEP = re.compile(r"0|[1-9][0-9]*")


class Folder:
    """The folder of one run's checkpoints.

    Args:
        location: Local path, relative or absolute, or a URL that Orbax takes
            (`gs://`, `s3://`). Nothing is created before the first save.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        text = os.fspath(location)
        self.is_local = "://" not in text
        # Orbax refuses relative paths, and a later chdir must not move the folder.
        self.path = epath.Path(os.path.abspath(text) if self.is_local else text)  # noqa: PTH100 - abspath keeps symlinks as the user wrote them

    def __str__(self) -> str:
        return str(self.path)

    def step_path(self, step: int) -> epath.Path:
        """Return the place of a finished step, whether it exists or not."""
        return self.path / str(step)

    def write_path(self, step: int) -> epath.Path:
        """Return the place in which a save writes a step."""
        name = f"{step}{_STAGED}" if self.is_local else str(step)
        return self.path / name

    def numbered(self) -> list[int]:
        """Return the steps for which a directory stands, whoever made it."""
        if not self.path.is_dir():
            return []
        return sorted(
            int(entry.name)
            for entry in self.path.iterdir()
            if _STEP.fullmatch(entry.name) and entry.is_dir()
        )

    def steps(self) -> list[int]:
        """Return the finished steps that this package wrote, oldest first."""
        return [
            step
            for step in self.numbered()
            if (self.step_path(step) / META_FILE).exists()
        ]

    def is_ours(self, step: int) -> bool:
        """Return whether the directory of a step came from here, whole or damaged."""
        place = self.step_path(step)
        return any(
            (place / part).exists()
            for part in (META_FILE, TREE_FILE, DIGESTS_FILE, STATE_ITEM)
        )

    def publish(self, step: int) -> None:
        """Make a whole, staged step visible under its number.

        An older directory of the same number is moved aside first and removed last,
        so that one of the two survives a kill at any moment.
        """
        if not self.is_local:
            return
        place, aside = self.step_path(step), self.path / f"{step}{_REPLACED}"
        if place.exists():
            aside.rmtree(missing_ok=True)
            place.rename(aside)
        self.write_path(step).rename(place)
        _sync_directory(self.path)
        aside.rmtree(missing_ok=True)

    def delete(self, step: int) -> None:
        """Remove a finished step."""
        place = self.step_path(step)
        if self.is_local:
            doomed = self.path / f"{step}{_DELETED}"
            doomed.rmtree(missing_ok=True)
            place.rename(doomed)
            place = doomed
        place.rmtree(missing_ok=True)

    def abandon(self, step: int) -> epath.Path:
        """Move a step into `abandoned/`, where nothing is deleted; say where."""
        shelf = self.path / ABANDONED
        shelf.mkdir(parents=True, exist_ok=True)
        place, copies = shelf / str(step), 0
        while place.exists():
            copies += 1
            place = shelf / f"{step}.{copies}"
        self.step_path(step).rename(place)
        return place

    def clean(self) -> None:
        """Remove what a killed process left half-written or half-removed.

        Call it only while holding `lock()`: what another process is writing right
        now looks the same.
        """
        if not self.path.is_dir():
            return
        for entry in list(self.path.iterdir()):
            moved_aside = _ABOUT_TO_BE_REPLACED.fullmatch(entry.name)
            if moved_aside and not self.step_path(int(moved_aside[1])).exists():
                entry.rename(self.step_path(int(moved_aside[1])))
            elif moved_aside or _LEFTOVER.fullmatch(entry.name):
                entry.rmtree(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Generator[bool, None, None]:
        """Hold the folder against other processes that save into it.

        Yields:
            False when another process holds it. The lock is the operating system's:
            it goes with the process, however that ends. Where the file system has
            no locks, everyone gets it.
        """
        if fcntl is None or not self.is_local or not self.path.is_dir():
            yield True
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                held = False
            except OSError:  # a file system without locks
                held = True
            yield held
            if held:
                # Closing is not enough: a child forked meanwhile shares the lock.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def create(self) -> None:
        """Make the folder where it does not stand.

        Raises:
            CheckpointWriteError: The place is a file, or must not be written to.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointWriteError(
                f"{self}: cannot hold checkpoints ({error.strerror or error}); "
                "give checkpoint_path a folder that this process may write to"
            ) from error


def _sync_directory(path: epath.Path) -> None:
    """Bring the names in a local directory to the disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
