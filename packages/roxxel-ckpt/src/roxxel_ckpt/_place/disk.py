"""A folder of checkpoints on a disk: its directories, and whose turn it is to save.

    <step>/checkpoint.json, state/..., digests/...  a step
    <step>.<generation>-<number>-<token>/           a step that is saved or deleted now
    <step>.roxxel-replaced/                         a step that a save is replacing
    <step>.damaged/                                 a step that a restore could not use
    manifest.json                                   whose turn it is to save

A step is a directory that is renamed into place when it is complete, so a directory
with a number as its name is a step, whoever put it there. A save writes to a directory
with a name of its own; process `p` writes to its subdirectory `process-<p>/`.

`manifest.json` works as in a bucket (`roxxel_store.swap`): a program begins by
replacing it with one of a higher generation. It renames directories only while it holds
the lock of the folder and the manifest is its own. So a program that was suspended, or
lost its disk, renames and deletes nothing of a later one. Its list of steps serves only
to notice directories that somebody removed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import shutil
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roxxel_store.files import (
    MAX_BYTES,
    make_folder,
    mode_of,
    read_file,
    sync_file,
    sync_folder,
    sync_tree,
)
from roxxel_store.swap import DiskFolder, Manifest, Writer, read_manifest, writer_of

from roxxel_ckpt._arrays.layout import STATE
from roxxel_ckpt._integrity import LocalFiles, identity_of, sizes_in
from roxxel_ckpt._place.description import COMMIT_FILE, delivered, listed
from roxxel_ckpt.contents import SWAP_ERRORS
from roxxel_ckpt.errors import (
    CheckpointError,
    CheckpointTimeoutError,
    CheckpointWriteError,
    brief,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Sequence

    from roxxel_ckpt._place.folder import Step
    from roxxel_ckpt.contents import Files

_logger = logging.getLogger("roxxel_ckpt")
_SWAP_ERRORS = replace(
    SWAP_ERRORS, remedy="delete this file: the steps are the folders beside it"
)
_REPLACED = ".roxxel-replaced"
_DAMAGED = ".damaged"
_STEP = re.compile(r"(0|[1-9][0-9]*)(\.roxxel-replaced)?")
# Longest wait until a network file system shows a new file to other hosts.
_VISIBILITY_TIMEOUT_S = 5.0
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True)
class LocalStep:
    """The directory of a step on a disk.

    Attributes:
        number: Number of updates done.
        path: The directory.
        commit: Differs between two saves of the step; None without a description.
    """

    number: int
    path: Path
    commit: tuple[int, ...] | None = None

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
        return sizes_in(self.path)

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

    def __init__(self, path: str | os.PathLike[str], timeout_s: float) -> None:
        self.described: dict[Step, Any] = {}
        self.path, self._timeout_s = without_dots(Path(path)), timeout_s
        self._shared = DiskFolder(self.path, timeout_s, CheckpointTimeoutError)

    def __str__(self) -> str:
        return str(self.path)

    def check_not_lost(self) -> None:
        """Do nothing: a step is found by its directory alone."""

    def steps(self, only: Collection[int] | None = None) -> dict[int, Step]:
        """Return every step with a directory, whichever program wrote it, in order."""
        return {
            step: LocalStep(step, path, identity_of(path / COMMIT_FILE))
            for step, path in sorted(self._directories(only).items())
        }

    def turn(self) -> Manifest:
        """Return whose turn to save it is."""
        return read_manifest(self._shared, _SWAP_ERRORS)

    @contextlib.contextmanager
    def saving(self, seen: Manifest | None = None) -> Generator[str]:
        """Become the writer; wait until no other thread saves here.

        The first time, the folder is created, and what killed processes left is
        removed. Meanwhile an empty file has the yielded name, for `sees`. The name is
        new, because a network file system may report stale facts about a known name.
        """
        writer = self._writer
        with writer.alone(self._timeout_s):
            try:
                if seen is not None or not writer.has_begun:
                    make_folder(self.path)
                if writer.ensure_begun(seen):
                    self._tidy()
                attempt = writer.new_name()
                (self.path / attempt).touch()
            except CheckpointError:
                raise
            except OSError as error:
                raise CheckpointWriteError(
                    f"{self}: cannot hold checkpoints ({error.strerror or error}); "
                    "give checkpoint_path a folder that this process may write to"
                ) from error
            try:
                yield attempt
            finally:
                with contextlib.suppress(OSError):
                    (self.path / attempt).unlink()

    def sees(self, attempt: str) -> bool:
        """Return whether this process sees the file of `saving`, after a short wait."""
        deadline_s = time.monotonic() + _VISIBILITY_TIMEOUT_S
        while not (self.path / attempt).exists():
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
        staged = self.path / f"{step}.{attempt}"
        try:
            yield staged / f"process-{process}"
        except Exception:
            if process == 0:
                # A later program removes the directory, which looks like another error.
                self._writer.ensure_begun()
            raise
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
            CheckpointWriteError: A later program has begun to save here, or the files
                of a process are missing.
            ValueError: There are pieces of files, which only a bucket can list.
        """
        if files:
            raise ValueError(
                f"{self}: is on a disk, which lists no pieces of files; leave files out"
            )
        staged = staging.parent
        self._writer.ensure_begun()  # else a later program has removed the files
        delivered(self, LocalStep(step, staged), digests)
        with (staged / COMMIT_FILE).open("wb") as file:
            file.write(text.encode())
            file.flush()
            sync_file(file.fileno())
        sync_folder(staged)
        numbered, replaced = self._numbered(step), self._replaced(step)
        with self._writer.locked(), contextlib.ExitStack() as moves:
            self._writer.ensure_begun()
            self._warn_of_gone_steps()
            kept = [self._new_damaged(each.number) for each in damaged]
            for each, path in zip(damaged, kept, strict=True):
                _move(self._directory(each.number), path, moves)
            if mode_of(numbered) is not None:
                self._drop([replaced])  # an earlier save could not delete it
                _move(numbered, replaced, moves)
            _move(staged, numbered, moves)
            sync_folder(self.path)
            self._list_all_but(drops)
            moves.pop_all()
            self._drop([replaced, *map(self._numbered, sorted(drops))])
        self._collect()
        return [str(path) for path in kept]

    def delete(self, step: int) -> None:
        """Delete a step; call it in `saving`.

        Raises:
            CheckpointWriteError: A later program has begun; nothing was changed.
        """
        with self._writer.locked():
            self._writer.ensure_begun()
            self._list_all_but({step})
            self._drop([self._directory(step)])
        self._collect()

    @property
    def _writer(self) -> Writer:
        return writer_of(self._shared, _SWAP_ERRORS)

    def _directories(self, only: Collection[int] | None = None) -> dict[int, Path]:
        """Return the directory of each step, by listing the folder unless `only`."""
        if only is not None:
            found = dict[int, Path]()
            for step in only:
                path = self._directory(step)
                if stat.S_ISDIR(mode_of(path) or 0):
                    found[step] = path
            return found
        entries = dict[int, os.DirEntry[str]]()
        for entry in _entries_in(self.path):
            match = _STEP.fullmatch(entry.name)
            # The directory that was not renamed comes first.
            if match and not (match[2] and int(match[1]) in entries):
                entries[int(match[1])] = entry
        return {
            step: self.path / entry.name
            for step, entry in entries.items()
            if entry.is_dir()
        }

    def _directory(self, step: int) -> Path:
        """Return the directory of a step, whether or not it exists.

        A commit renames the old directory of a step before it puts the new one in
        place. If the process is killed in between, this method returns the renamed
        directory, until the next save renames it back.
        """
        numbered, replaced = self._numbered(step), self._replaced(step)
        is_replaced = mode_of(numbered) is None and mode_of(replaced) is not None
        return replaced if is_replaced else numbered

    def _numbered(self, step: int) -> Path:
        """Return where a step is once it is complete."""
        return self.path / str(step)

    def _replaced(self, step: int) -> Path:
        """Return where the old files of a step are while a save replaces them."""
        return self.path / f"{step}{_REPLACED}"

    def _new_damaged(self, step: int) -> Path:
        """Return where to keep a damaged step, of which there may be several."""
        endings = itertools.chain([""], (f".{n}" for n in itertools.count(2)))
        paths = (self.path / f"{step}{_DAMAGED}{ending}" for ending in endings)
        return next(path for path in paths if mode_of(path) is None)

    def _half_replaced(self) -> Iterator[tuple[int, Path]]:
        """Yield the steps that a killed save was replacing."""
        for entry in _entries_in(self.path):
            found = _STEP.fullmatch(entry.name)
            if found and found[2] and entry.is_dir():
                yield int(found[1]), Path(entry)

    def _list_all_but(self, drops: Collection[int]) -> None:
        """Replace the manifest by one that lists the steps that stay."""
        steps = sorted(self._directories().keys() - set(drops))
        self._writer.swap(lambda _: {"steps": steps})

    def _warn_of_gone_steps(self) -> None:
        """Log the steps that the manifest lists and that are no longer there."""
        found, held = self._directories(), self._writer.held.listed.get("steps")
        gone = [n for n in held or () if isinstance(n, int) and n not in found]
        if gone:
            _logger.warning(
                "%s: %s %s gone, and no program has deleted them",
                self,
                listed(gone),
                "is" if len(gone) == 1 else "are",
            )

    def _drop(self, directories: Collection[Path]) -> None:
        """Rename directories to unique names, by which `_collect` deletes them.

        A kill in between leaves a directory whole under one of its names.
        """
        for directory in directories:
            if mode_of(directory) is None and not directory.is_symlink():
                continue
            name = self._writer.new_name(f"{directory.name.partition('.')[0]}.")
            try:
                directory.rename(self.path / name)
            except OSError as error:  # the next save tries again
                _logger.warning("%s: cannot be deleted (%s)", directory, brief(error))
            else:
                self._writer.drop([name])

    def _collect(self) -> None:
        try:
            self._writer.collect()
        except OSError as error:  # the next save tries again
            what = f"{self}: leftovers of earlier saves"
            _logger.warning("%s: cannot be deleted (%s)", what, brief(error))

    def _tidy(self) -> None:
        """Finish what a killed program had begun to replace or to delete."""
        self._warn_of_gone_steps()
        with self._writer.locked():
            self._writer.ensure_begun()
            for step, replaced in self._half_replaced():
                numbered = self._numbered(step)
                if mode_of(numbered) is None:
                    replaced.rename(numbered)
                else:
                    self._drop([replaced])
        self._collect()


def without_dots(path: Path) -> Path:
    """Return an absolute path without `..`; links after the last `..` stay unresolved.

    The operating system resolves `link/..` to the parent of the link's target, but
    `os.path.abspath` resolves it to the folder that contains the link.
    """
    parts = path.absolute().parts
    if ".." not in parts:
        return Path(*parts)
    first = len(parts) - parts[::-1].index("..")
    return Path(*parts[:first]).resolve().joinpath(*parts[first:])


def _entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; [] if it does not exist, or is no folder."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


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


def _move(path: Path, target: Path, moves: contextlib.ExitStack) -> None:
    """Rename a path; closing `moves` takes the rename back."""
    path.rename(target)
    moves.callback(target.rename, path)
