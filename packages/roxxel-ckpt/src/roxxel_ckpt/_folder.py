"""The folder of one run's checkpoints: names, deletion, leftovers, the lock.

Step `k` is the directory `<folder>/<k>/`. A save writes to the directory
`<k>.<attempt>.roxxel-staged` and renames this directory at the end, so a directory with
a number as its name is complete. A deletion first renames the directory, so a killed
process leaves no half-deleted step. The package removes only files that it created.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from roxxel_ckpt.errors import CheckpointNotFoundError, CheckpointWriteError

if TYPE_CHECKING:
    from collections.abc import Generator

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no `fcntl`
    fcntl = None

COMMIT_FILE = "checkpoint.json"
STATE = "state"
METADATA_FILE = f"{STATE}/_METADATA"
ABANDONED = "abandoned"
# Version 0.1 described a step in two files.
V1_META_FILE = "meta/metadata"
V1_TREE_FILE = "tree/metadata"
V1_DIGESTS_FILE = "digests.json"
MANAGER_ITEM = "default"
# An Orbax manager writes these files and no `checkpoint.json`.
_OF_MANAGER = ("_CHECKPOINT_METADATA", f"{MANAGER_ITEM}/_METADATA", "metrics/metrics")
_OURS = (COMMIT_FILE, STATE, V1_META_FILE, V1_TREE_FILE, V1_DIGESTS_FILE)
_REPLACED = ".roxxel-replaced"
_DELETED = ".roxxel-deleted"
STAGED = ".roxxel-staged"
NOT_SHARED_REMEDY = "give checkpoint_path a folder on a disk that all processes share"
_LEFTOVER = re.compile(
    r"[0-9]+(\.[0-9a-f]+)?\.roxxel-(staged|deleted)(\.orbax-checkpoint-tmp.*)?"
)
# Names that Orbax can give to steps, with a prefix or leading zeros.
_OTHER_NAME = re.compile(r"(?:.*_)?([0-9]+)")
_STEP = re.compile(r"(0|[1-9][0-9]*)(\.roxxel-replaced)?")


def _absolute(path: Path) -> Path:
    """Return an absolute path without `..`; links after the last `..` stay unresolved.

    The operating system resolves `link/..` to the parent of the link's target, but
    `os.path.abspath` to the folder that contains the link.
    """
    parts = path.absolute().parts
    if ".." not in parts:
        return Path(*parts)
    first = len(parts) - parts[::-1].index("..")
    return Path(*parts[:first]).resolve().joinpath(*parts[first:])


class Folder:
    """The folder of one run's checkpoints: a local path, which need not exist yet."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        text = os.fspath(location)
        if "://" in text:
            raise ValueError(
                f"{text}: checkpoints cannot be written to a URL; give a path of a "
                "local or mounted disk"
            )
        self.path = _absolute(Path(text))

    def __str__(self) -> str:
        return str(self.path)

    def check_has_no_misplaced_step(self) -> None:
        """Raise CheckpointNotFoundError if this folder without steps is the wrong one.

        The folder may be a run, whose subfolder `checkpoints` has steps, or a step. Or
        the folder may have steps under names that are not numbers, such as `step_3`.
        """
        inner = Folder(self.path / "checkpoints")
        if inner.steps():
            raise CheckpointNotFoundError(
                f"{self}: holds no step, but {inner} does; give that folder"
            )
        if _is_step(self.path):
            raise CheckpointNotFoundError(
                f"{self}: is a checkpoint and not a folder of checkpoints; "
                f"{self._remedy_for(self.path)}"
            )
        entries = self.path.iterdir() if self.path.is_dir() else ()
        for entry in sorted(entries):
            if _OTHER_NAME.fullmatch(entry.name) and _is_step(entry):
                raise CheckpointNotFoundError(
                    f"{entry}: is a checkpoint, but its name is not the number of a "
                    f"step; {self._remedy_for(entry)}"
                )

    def _remedy_for(self, directory: Path) -> str:
        found = _OTHER_NAME.fullmatch(directory.name)
        remedy = f"give {directory.parent}"
        if _STEP.fullmatch(directory.name) or not found:
            return remedy
        return f"rename it to {int(found[1])} and {remedy}"

    def step_path(self, step: int) -> Path:
        """Return the directory of a finished step, whether or not it exists.

        `publish` renames the old directory of a step before it puts the new directory
        in place. If the process is killed in between, this method returns the renamed
        directory, until the next save or restore renames it back.
        """
        numbered, aside = self._numbered_path(step), self._aside(step)
        return aside if not numbered.exists() and aside.exists() else numbered

    def numbered(self) -> list[int]:
        """Return every step that has a directory, of any program, oldest first."""
        if not self.path.is_dir():
            return []
        found = ((_STEP.fullmatch(e.name), e) for e in self.path.iterdir())
        return sorted({int(match[1]) for match, e in found if match and e.is_dir()})

    def steps(self) -> list[int]:
        """Return the finished steps that this package can read, oldest first."""
        return [step for step in self.numbered() if _is_finished(self.step_path(step))]

    def is_checkpoint(self, step: int) -> bool:
        """Return whether this package or an Orbax manager wrote a step's directory.

        The step may be damaged.
        """
        directory = self.step_path(step)
        return is_of_manager(directory) or any(
            (directory / part).exists() for part in _OURS
        )

    def publish(self, staged: Path, step: int) -> None:
        """Rename a complete, staged directory to the number of its step.

        An older directory of the step is renamed first and removed last, so a complete
        directory of the step exists at any time, even after a kill.
        """
        numbered, aside = self._numbered_path(step), self._aside(step)
        if numbered.exists():
            numbered.rename(aside)
        staged.rename(numbered)
        sync_directory(self.path)
        if aside.exists():
            self._remove(aside, step)

    def delete(self, step: int) -> None:
        """Remove a finished step."""
        self._remove(self._numbered_path(step), step)

    def abandon(self, step: int) -> None:
        """Move a step into `abandoned/`, where this package deletes nothing."""
        abandoned = self.path / ABANDONED
        abandoned.mkdir(exist_ok=True)
        target, copies = abandoned / str(step), 0
        while target.exists():
            copies += 1
            target = abandoned / f"{step}.{copies}"
        self._numbered_path(step).rename(target)

    def clean(self) -> None:
        """Remove directories that killed processes left half-written or half-removed.

        Call this only under `lock()`: a save in flight uses the same names.
        """
        if not self.path.is_dir():
            return
        for step in self.numbered():
            numbered, aside = self._numbered_path(step), self._aside(step)
            if aside.exists():
                if numbered.exists():
                    self._remove(aside, step)
                else:
                    aside.rename(numbered)
        for entry in list(self.path.iterdir()):
            if _LEFTOVER.fullmatch(entry.name):
                _remove_tree(entry)

    def create(self) -> None:
        """Create the folder if it does not exist."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_hold_checkpoints(self, error) from error

    @contextlib.contextmanager
    def lock(self) -> Generator[bool]:
        """Lock the folder against saves of other processes; yield True on success.

        The operating system releases the lock when the process ends, even after a kill.
        On a file system without locks, every process succeeds.
        """
        if fcntl is None or not self.path.is_dir():
            yield True
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            held = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held = False
            except OSError:
                pass  # a file system without locks
            yield held
            if held:
                # Closing alone would not release a lock that a forked child shares.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _numbered_path(self, step: int) -> Path:
        return self.path / str(step)

    def _aside(self, step: int) -> Path:
        return self.path / f"{step}{_REPLACED}"

    def _remove(self, directory: Path, step: int) -> None:
        doomed = self.path / f"{step}{_DELETED}"
        _remove_tree(doomed)
        directory.rename(doomed)
        _remove_tree(doomed)


def cannot_hold_checkpoints(folder: Folder, error: OSError) -> CheckpointWriteError:
    return CheckpointWriteError(
        f"{folder}: cannot hold checkpoints ({error.strerror or error}); "
        "give checkpoint_path a folder that this process may write to"
    )


def is_of_manager(directory: Path) -> bool:
    """Return whether an Orbax manager wrote a step with the expected items.

    A damaged step may lack one of the files that describe the step.
    """
    return not _is_committed(directory) and _num_of_manager(directory) >= 2


def _is_finished(directory: Path) -> bool:
    return _is_committed(directory) or _num_of_manager(directory) == len(_OF_MANAGER)


def _is_step(directory: Path) -> bool:
    """Return whether a directory of any name holds a step, which may be damaged."""
    return _is_committed(directory) or is_of_manager(directory)


def _is_committed(directory: Path) -> bool:
    return any((directory / name).exists() for name in (COMMIT_FILE, V1_META_FILE))


def _num_of_manager(directory: Path) -> int:
    return sum((directory / name).exists() for name in _OF_MANAGER)


def escaped(text: str) -> str:
    """Escape the slashes in one part of a leaf's name; slashes separate the parts."""
    return text.replace("%", "%25").replace("/", "%2F")


def listed(steps: list[int]) -> str:
    """Return steps as text: the first ten, and the number of further steps."""
    if not steps:
        return "no step"
    shown = ", ".join(map(str, steps[:10]))
    return f"{'step' if len(steps) == 1 else 'steps'} {shown}" + (
        f" and {len(steps) - 10} more" if len(steps) > 10 else ""
    )


def digests_file(process: int) -> str:
    """Return the path of a process's file of digests in the directory of a step."""
    return f"digests/{process}.json"


def write_synced(path: Path, text: str) -> None:
    """Write a file and flush it to the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory to the disk, if the system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove_tree(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
