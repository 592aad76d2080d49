"""Which directories of a folder on a disk are steps, and how the others are named.

    <step>/checkpoint.json, state/..., digests/...  a step
    <step>.<generation>-<number>-<token>/           a step that is saved or deleted now
    <step>.roxxel-replaced/                         a step that a save is replacing
    <step>.damaged/                                 a step that a restore could not use
    manifest.json                                   whose turn it is to save

A step is a directory that is renamed into place when it is complete, so a directory
with a number as its name is a step, whoever put it there. This module renames and
deletes nothing.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from roxxel_store.files import matches_in, mode_of, read_file
from roxxel_store.records import MAX_BYTES

from roxxel_ckpt._integrity import LocalFiles, identity_of
from roxxel_ckpt._names import COMMIT_FILE, STATE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_REPLACED = ".roxxel-replaced"
_DAMAGED = ".damaged"
_STEP = re.compile(r"(0|[1-9][0-9]*)(\.roxxel-replaced)?")


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


class Directories:
    """The directories of a folder's steps, by their names."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def by_step(self, only: Collection[int] | None = None) -> dict[int, Path]:
        """Return the directory of each step, by listing the folder unless `only`."""
        if only is not None:
            found = {step: self.of(step) for step in only}
            return {step: path for step, path in found.items() if _is_directory(path)}
        entries = dict[int, os.DirEntry[str]]()
        for entry in _entries_in(self._path):
            match = _STEP.fullmatch(entry.name)
            # The directory that was not renamed comes first.
            if match and not (match[2] and int(match[1]) in entries):
                entries[int(match[1])] = entry
        return {
            step: self._path / entry.name
            for step, entry in entries.items()
            if entry.is_dir()
        }

    def of(self, step: int) -> Path:
        """Return the directory of a step, whether or not it exists.

        A commit renames the old directory of a step before it puts the new one in
        place. If the process is killed in between, this method returns the renamed
        directory, until the next save renames it back.
        """
        numbered, replaced = self.numbered(step), self.replaced(step)
        is_replaced = mode_of(numbered) is None and mode_of(replaced) is not None
        return replaced if is_replaced else numbered

    def numbered(self, step: int) -> Path:
        """Return where a step is once it is complete."""
        return self._path / str(step)

    def replaced(self, step: int) -> Path:
        """Return where the old files of a step are while a save replaces them."""
        return self._path / f"{step}{_REPLACED}"

    def new_damaged(self, step: int) -> Path:
        """Return where to keep a damaged step, of which there may be several."""
        endings = itertools.chain([""], (f".{n}" for n in itertools.count(2)))
        paths = (self._path / f"{step}{_DAMAGED}{ending}" for ending in endings)
        return next(path for path in paths if mode_of(path) is None)

    def half_replaced(self) -> Iterator[tuple[int, Path]]:
        """Yield the steps that a killed save was replacing."""
        for entry in _entries_in(self._path):
            found = _STEP.fullmatch(entry.name)
            if found and found[2] and entry.is_dir():
                yield int(found[1]), Path(entry)


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


def _entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; [] if it does not exist, or is no folder."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_directory(path: Path) -> bool:
    return stat.S_ISDIR(mode_of(path) or 0)
