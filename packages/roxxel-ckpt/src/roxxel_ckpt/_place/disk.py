"""A folder of checkpoints on a disk: names, deletion, leftovers, the lock.

Step `k` is the directory `<folder>/<k>/`. A save writes to the directory
`<k>.<attempt>.roxxel-staged`; process `p` writes to its subdirectory `process-<p>/`. At
the end, the save renames the directory to `<k>`, so a directory with a number as its
name is complete. A deletion first renames the directory, so a killed process leaves no
half-deleted step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roxxel_store.files import (
    matches_in,
    mode_of,
    read_file,
    sync_file,
    sync_folder,
    sync_tree,
)
from roxxel_store.locks import lock_folder, unlock_folder
from roxxel_store.records import MAX_BYTES

from roxxel_ckpt._integrity import LocalFiles, identity_of
from roxxel_ckpt._names import COMMIT_FILE, STATE
from roxxel_ckpt._place.description import delivered
from roxxel_ckpt.errors import CheckpointWriteError, brief

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

    from roxxel_ckpt._place.folder import Step
    from roxxel_ckpt.contents import Files

_logger = logging.getLogger("roxxel_ckpt")
_REPLACED = ".roxxel-replaced"
_DELETED = ".roxxel-deleted"
_DAMAGED = ".damaged"
_STAGED = ".roxxel-staged"
_SAVING = ".roxxel-saving"
_LEFTOVER = re.compile(
    r"[0-9]+(\.[0-9a-f]+)?\.roxxel-(staged|saving|deleted)(\.orbax-checkpoint-tmp.*)?"
)
_STEP = re.compile(r"(0|[1-9][0-9]*)(\.roxxel-replaced)?")
# Longest wait until a network file system shows a new file to other hosts.
_VISIBILITY_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.05


@dataclasses.dataclass(frozen=True)
class LocalStep:
    """The directory of a step on a disk.

    Attributes:
        number: Number of updates done.
        path: The directory.
        commit: Tells two saves of the step apart; None without a description.
    """

    number: int
    path: Path
    commit: tuple[int, ...] | None = None

    @classmethod
    def found(cls, number: int, path: Path) -> LocalStep:
        """Return the step whose directory was found."""
        try:
            return cls(number, path, identity_of(path / COMMIT_FILE))
        except (FileNotFoundError, NotADirectoryError):
            return cls(number, path)

    @property
    def location(self) -> str:
        """The path of the directory."""
        return str(self.path)

    @property
    def state(self) -> Literal["finished", "unfinished", "foreign"]:
        """Whether the step was committed, and whether this package wrote it."""
        if self.commit is not None:
            return "finished"
        is_ours = mode_of(self.path / STATE) is not None
        return "unfinished" if is_ours else "foreign"

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        return read_file(self.path / name, MAX_BYTES)

    def sizes(self) -> dict[str, int]:
        """Return the number of bytes of every file, by its path in the step."""
        return {
            path.relative_to(self.path).as_posix(): path.stat().st_size
            for path in matches_in(self.path, "**/*")
            if path.is_file()
        }

    def opened(self) -> LocalFiles:
        """Return the files."""
        return LocalFiles(self.path)


class LocalFolder:
    """A folder on a disk that all processes share; it need not exist yet."""

    not_shared_remedy = (
        "give checkpoint_path a folder on a disk that all processes share"
    )
    staging_remedy = (
        "make room there, or give checkpoint_path a folder that this program can write"
    )

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.described: dict[Step, Any] = {}
        self._given = absolute(Path(path))
        self._held = HeldFolder(self._given)

    @property
    def path(self) -> Path:
        """The folder; after a rename by somebody else, its new path."""
        path = self._held.path()
        if path != self._given:
            _logger.warning(
                "%s: was renamed to %s, where the checkpoints are written from now on; "
                "give the new path when you start again",
                self._given,
                path,
            )
            self._given = path
        return path

    def __str__(self) -> str:
        return str(self.path)

    def check_not_lost(self) -> None:
        """Do nothing: a step is found by its directory alone."""

    def steps(self, only: Collection[int] | None = None) -> dict[int, Step]:
        """Return every step with a directory, whichever program wrote it, in order."""
        if only is None:
            found = self._directories()
        else:
            paths = {step: self._directory(step) for step in only}
            found = {step: path for step, path in paths.items() if _is_directory(path)}
        return {step: LocalStep.found(step, found[step]) for step in sorted(found)}

    def _directories(self) -> dict[int, Path]:
        """Return the directory of every step, by listing the folder."""
        path, found = self.path, dict[int, os.DirEntry[str]]()
        for entry in _entries_in(path):
            match = _STEP.fullmatch(entry.name)
            # The directory that was not renamed comes first.
            if match and not (match[2] and int(match[1]) in found):
                found[int(match[1])] = entry
        return {
            step: path / entry.name for step, entry in found.items() if entry.is_dir()
        }

    def _directory(self, step: int) -> Path:
        """Return the directory of a step, whether or not it exists.

        `commit` renames the old directory of a step before it puts the new directory
        in place. If the process is killed in between, this method returns the renamed
        directory, until the next save renames it back.
        """
        numbered, replaced = self._numbered_path(step), self._replaced(step)
        is_replaced = mode_of(numbered) is None and mode_of(replaced) is not None
        return replaced if is_replaced else numbered

    def sees(self, attempt: str) -> bool:
        """Return whether this process sees the file of `saving`, after a short wait."""
        deadline_s = time.monotonic() + _VISIBILITY_TIMEOUT_S
        while not (self.path / f"0.{attempt}{_SAVING}").exists():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_INTERVAL_S)
        return True

    @contextlib.contextmanager
    def staged(self, step: int, attempt: str, process: int) -> Generator[Path]:
        """Yield the subdirectory of a process in the staged directory of a save.

        At the end, process 0 removes the staged directory, unless `commit` renamed it.
        If this process is killed, the next save removes it.
        """
        staged = self.path / f"{step}.{attempt}{_STAGED}"
        try:
            yield staged / f"process-{process}"
        finally:
            if process == 0:
                shutil.rmtree(staged, ignore_errors=True)

    def deliver(self, staging: Path) -> None:
        """Move the files of a process up, into the staged directory of the save."""
        staged = staging.parent
        # Orbax flushes arrays, but neither its metadata nor the names in its folders.
        sync_tree(staging)
        for entry in list(staging.iterdir()):
            _merge(entry, staged / entry.name)
        sync_folder(staged)
        shutil.rmtree(staging)

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
        """Rename the complete, staged directory to the number of its step.

        Damaged steps are renamed right before, and back if the commit fails. An older
        directory of the step is renamed first and removed last, so a complete directory
        of the step exists at any time, even after a kill.

        Raises:
            CheckpointWriteError: The files of a process are missing.
            ValueError: There are pieces of files, which only a bucket can list.
        """
        if files:
            raise ValueError(
                f"{self}: is on a disk, which lists no pieces of files; leave files out"
            )
        staged = staging.parent
        delivered(self, LocalStep(step, staged), digests)
        with (staged / COMMIT_FILE).open("wb") as file:
            file.write(text.encode())
            file.flush()
            sync_file(file.fileno())
        sync_folder(staged)
        kept = [self._damaged_path(each.number) for each in damaged]
        numbered, replaced = self._numbered_path(step), self._replaced(step)
        with contextlib.ExitStack() as moves:
            for each, path in zip(damaged, kept, strict=True):
                _move(self._directory(each.number), path, moves)
            if mode_of(numbered) is not None:
                _move(numbered, replaced, moves)
            _move(staged, numbered, moves)
            sync_folder(self.path)
            moves.pop_all()
        if mode_of(replaced) is not None:
            self._remove(replaced, step)
        for old in sorted(drops):
            try:
                self.delete(old)
            except OSError as error:  # the next save tries again
                directory = self._numbered_path(old)
                _logger.warning("%s: cannot be deleted (%s)", directory, brief(error))
        return [str(path) for path in kept]

    def delete(self, step: int) -> None:
        """Delete a step; call it in `saving`."""
        self._remove(self._numbered_path(step), step)

    def _damaged_path(self, step: int) -> Path:
        """Return where to keep a damaged step, of which there may be several."""
        endings = itertools.chain([""], (f".{n}" for n in itertools.count(2)))
        paths = (self.path / f"{step}{_DAMAGED}{ending}" for ending in endings)
        return next(path for path in paths if mode_of(path) is None)

    def _clean(self) -> None:
        """Remove directories that killed processes left half-written or half-removed.

        Call this only while the folder is locked: a save in flight uses the same names.
        """
        for entry in _entries_in(self.path):
            found = _STEP.fullmatch(entry.name)
            if _LEFTOVER.fullmatch(entry.name):
                _remove_tree(Path(entry))
            elif found and found[2] and entry.is_dir():
                numbered = self._numbered_path(int(found[1]))
                if mode_of(numbered) is None:
                    Path(entry).rename(numbered)
                else:
                    self._remove(Path(entry), int(found[1]))

    @contextlib.contextmanager
    def saving(self) -> Generator[str]:
        """Create the folder, lock and clean it; yield a unique hexadecimal name.

        An empty file has the name meanwhile. The name is new, because a network file
        system may still report that a known name does not exist.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_hold(error) from error
        with self._locked() as is_free:
            if not is_free:
                raise CheckpointWriteError(
                    f"{self}: another process is saving a checkpoint here; wait until "
                    "it ends, and give every run a folder of its own"
                )
            self._clean()
            attempt = secrets.token_hex(4)
            mark = f"0.{attempt}{_SAVING}"
            try:
                (self.path / mark).touch()
            except OSError as error:
                raise self._cannot_hold(error) from error
            try:
                yield attempt
            finally:
                with contextlib.suppress(OSError):
                    (self.path / mark).unlink()

    @contextlib.contextmanager
    def _locked(self) -> Generator[bool]:
        """Lock the folder against saves of other processes; yield True on success."""
        descriptor = lock_folder(self.path)
        try:
            yield descriptor is not None
        finally:
            if descriptor is not None:
                unlock_folder(descriptor)

    def _cannot_hold(self, error: OSError) -> CheckpointWriteError:
        return CheckpointWriteError(
            f"{self}: cannot hold checkpoints ({error.strerror or error}); "
            "give checkpoint_path a folder that this process may write to"
        )

    def _numbered_path(self, step: int) -> Path:
        return self.path / str(step)

    def _replaced(self, step: int) -> Path:
        return self.path / f"{step}{_REPLACED}"

    def _remove(self, directory: Path, step: int) -> None:
        doomed = self.path / f"{step}{_DELETED}"
        _remove_tree(doomed)
        directory.rename(doomed)
        _remove_tree(doomed)


def absolute(path: Path) -> Path:
    """Return an absolute path without `..`; links after the last `..` stay unresolved.

    The operating system resolves `link/..` to the parent of the link's target, but
    `os.path.abspath` resolves it to the folder that contains the link.
    """
    parts = path.absolute().parts
    if ".." not in parts:
        return Path(*parts)
    first = len(parts) - parts[::-1].index("..")
    return Path(*parts[:first]).resolve().joinpath(*parts[first:])


def _merge(source: Path, target: Path) -> None:
    """Rename a file or directory; merge a directory into an existing one."""
    try:
        source.rename(target)
    except OSError:
        if not (source.is_dir() and target.is_dir()):
            raise
        for entry in list(source.iterdir()):
            _merge(entry, target / entry.name)
        sync_folder(target)


def _entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; [] if it does not exist, or is no folder."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(mode_of(path) or 0)


def _move(path: Path, target: Path, moves: contextlib.ExitStack) -> None:
    """Rename a path; closing `moves` takes the rename back."""
    path.rename(target)
    moves.callback(target.rename, path)


def _remove_tree(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class HeldFolder:
    """Holds a folder open from its first use, and follows it when it is renamed.

    A run may train for weeks, and somebody may rename its folder meanwhile. Files that
    are open move with the folder, but a path would name a new, empty folder.

    Renames on this machine are followed. If the folder was deleted, or if the system
    does not tell its new path, the path stays as it was given.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None
        self._close: weakref.finalize[..., HeldFolder] | None = None

    def path(self) -> Path:
        """Return the present path of the folder; the folder need not exist yet."""
        if self._handle is not None:
            held = os.fstat(self._handle)
            if _is_same(self._path, held):
                return self._path
            now = _path_of(self._handle)
            if now is not None and _is_same(now, held):
                self._path = now
                return now
            self._release()
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            return self._path
        self._close = weakref.finalize(self, os.close, self._handle)
        return self._path

    def _release(self) -> None:
        if self._close is not None:
            self._close()
        self._handle = self._close = None


def _is_same(path: Path, held: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), held)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _path_of(handle: int) -> Path | None:
    """Return the path of an open folder, if the system tells it."""
    try:
        if sys.platform == "darwin":
            import fcntl

            path = fcntl.fcntl(handle, fcntl.F_GETPATH, b"\0" * 1024)
            return Path(os.fsdecode(path.rstrip(b"\0")))
        return Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
    except OSError:
        return None
