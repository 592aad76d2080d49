"""Where the checkpoints of one run lie, and how one appears and goes away.

Step `k` lies in `<folder>/<k>/`. On a local disk it is written beside that place, in
`<k>.roxxel-staged`, and renamed once it is whole and its digests are in it: so a step
that can be seen is complete. A step goes away by a rename first, too, so that a process
killed half-way through a deletion leaves no half-deleted step behind.

Object stores cannot rename, so there a step is written in its place; it is seen from
the moment that its digests lie in it, or Orbax's mark of completeness and what the step
says of itself; it loses its marks first when it goes away.

Only names that this module makes are ever removed: other files in the folder are the
user's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from roxxel_ckpt import _files
from roxxel_ckpt.errors import CheckpointNotFoundError, CheckpointWriteError

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager

    from etils import epath

META_FILE = "meta/metadata"
TREE_FILE = "tree/metadata"
STATE_ITEM = "state"
DIGESTS_FILE = "digests.json"
ABANDONED = "abandoned"
_OURS = (META_FILE, TREE_FILE, DIGESTS_FILE, STATE_ITEM)
# Ours is written last; Orbax's stands before it when the arrays are there.
_ORBAX_MARK = "commit_success.txt"
_MARKS = (DIGESTS_FILE, _ORBAX_MARK)
_WHOLE = (_ORBAX_MARK, META_FILE, TREE_FILE)
_STAGED = ".roxxel-staged"
_REPLACED = ".roxxel-replaced"
_DELETED = ".roxxel-deleted"
_LEFTOVER = re.compile(r"[0-9]+\.roxxel-(staged|deleted)(\.orbax-checkpoint-tmp.*)?")
_STEP = re.compile(r"(0|[1-9][0-9]*)(\.roxxel-replaced)?")


class Folder:
    """The folder of one run's checkpoints.

    Args:
        location: Local path, relative or absolute, or a URL that Orbax takes
            (`gs://`). Nothing is created before the first save.

    Raises:
        ValueError: It is a URL of another kind.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.path = _files.absolute(location)
        self.is_local = _files.is_local(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def check_not_of_a_run(self) -> None:
        """Refuse the folder of a run in the place of that of its checkpoints.

        Raises:
            CheckpointNotFoundError: The steps lie in its folder `checkpoints`.
        """
        inner = Folder(self.path / "checkpoints")
        if inner.steps():
            raise CheckpointNotFoundError(
                f"{self}: holds no step, but {inner} does; give that folder"
            )

    def step_path(self, step: int) -> epath.Path:
        """Return where a finished step lies, or would lie if there were one.

        A step that is being replaced lies aside until the new one is in its place;
        after a kill in between it stays there until the next save or restore.
        """
        place, aside = self._place(step), self._aside(step)
        return aside if not place.exists() and aside.exists() else place

    def write_path(self, step: int) -> epath.Path:
        """Return the place in which a save writes a step."""
        return self.path / f"{step}{_STAGED}" if self.is_local else self._place(step)

    def numbered(self) -> list[int]:
        """Return the steps for which a directory stands, whoever made it."""
        return [step for step in self._listed() if not self._is_half_written(step)]

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
        return any((place / part).exists() for part in _OURS)

    def publish(self, step: int) -> None:
        """Make a whole, staged step visible under its number.

        An older directory of the same number is moved aside first and removed last,
        so that one of the two can be read at any moment, also after a kill.
        """
        if not self.is_local:
            return
        place, aside = self._place(step), self._aside(step)
        if place.exists():
            place.rename(aside)
        self.write_path(step).rename(place)
        _files.sync_directory(self.path)
        if aside.exists():
            self._remove(aside, step)

    def delete(self, step: int) -> None:
        """Remove a finished step."""
        self._remove(self._place(step), step)

    def abandon(self, step: int) -> epath.Path:
        """Move a step into `abandoned/`, where nothing is deleted; say where."""
        shelf = self.path / ABANDONED
        shelf.mkdir(parents=True, exist_ok=True)
        if not shelf.exists():  # in an object store only what lies in it makes it be
            (shelf / "README").write_text("Steps that a run left behind.\n")
        place, copies = shelf / str(step), 0
        while place.exists():
            copies += 1
            place = shelf / f"{step}.{copies}"
        self._place(step).rename(place)
        return place

    def clean(self) -> None:
        """Remove what a killed process left half-written or half-removed.

        Call it only while holding `lock()`: what another process is writing right
        now looks the same.
        """
        if not self.path.is_dir():
            return
        for step in self._listed():
            place, aside = self._place(step), self._aside(step)
            if aside.exists():
                if place.exists():
                    self._remove(aside, step)
                else:
                    aside.rename(place)
            elif self._is_half_written(step):
                self._remove(place, step)
        # Removing the only step of an object store removes the folder too.
        for entry in list(self.path.iterdir()) if self.path.is_dir() else ():
            if _LEFTOVER.fullmatch(entry.name):
                entry.rmtree(missing_ok=True)

    def lock(self) -> AbstractContextManager[bool]:
        """Hold the folder against other processes: see `_files.lock`."""
        return _files.lock(self.path)

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

    def _place(self, step: int) -> epath.Path:
        return self.path / str(step)

    def _aside(self, step: int) -> epath.Path:
        return self.path / f"{step}{_REPLACED}"

    def _listed(self) -> list[int]:
        if not self.path.is_dir():
            return []
        found = ((_STEP.fullmatch(e.name), e) for e in self.path.iterdir())
        return sorted({int(match[1]) for match, e in found if match and e.is_dir()})

    def _is_half_written(self, step: int) -> bool:
        """Return whether a step in an object store is still, or for ever, in parts."""
        if self.is_local:
            return False
        place = self._place(step)
        if not self.is_ours(step) or (place / DIGESTS_FILE).exists():
            return False
        return not all((place / part).exists() for part in _WHOLE)

    def _remove(self, directory: epath.Path, step: int) -> None:
        if self.is_local:
            doomed = self.path / f"{step}{_DELETED}"
            doomed.rmtree(missing_ok=True)
            directory.rename(doomed)
            directory = doomed
        else:
            for mark in _MARKS:
                (directory / mark).unlink(missing_ok=True)
        directory.rmtree(missing_ok=True)
