"""What a folder holds after a kill or a loss of power, at any moment of some work.

A disk keeps what was flushed: the content of a file at its last fsync, and the names in
a folder at the folder's last fsync. It may keep any part of the rest. Four kinds of
disk stand for all. Of the changes of names that were not flushed, one keeps none, one
all, one those by which names are gone, and one the last rename. A file that was not
flushed is empty. After a kill the folder holds what was written, flushed or not.
"""

from __future__ import annotations

import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Files = dict[str, bytes]
"""The content of each file, by its path in a folder."""

Names = dict[str, int]
"""The names in a folder, each with the number of its inode."""

DISKS: Sequence[Callable[[Names, Names, Names], Names]] = (
    lambda flushed, _, __: flushed,
    lambda _, now, __: now,
    lambda flushed, now, _: {name: flushed[name] for name in flushed if name in now},
    lambda flushed, _, last: flushed | last,
)


class LostPower:
    """What would be left of a folder around each flush and each rename in a block.

    What the folder holds at the beginning of the block is on the disk.

    Args:
        folder: The folder, in which only one thread works if `kills` is set.
        kills: Whether the process may be killed, too.

    Attributes:
        histories: For each kind of disk what it holds, from the beginning to the end.
        killed: What a kill leaves there, if `kills` is set.
    """

    def __init__(self, folder: Path, *, kills: bool = False) -> None:
        self.histories: Sequence[list[Files]] = [[] for _ in DISKS]
        self.killed: list[Files] = []
        self._kills = kills
        self._folder = folder
        self._root = folder.stat().st_ino
        self._flushed: dict[int, bytes | Names] = {}
        self._renamed: dict[int, Names] = {}  # the last name, by its folder
        self._lock = threading.RLock()
        self._block = ExitStack()

    def __enter__(self) -> Self:
        for path in (self._folder, *self._folder.rglob("*")):
            self._flush(path)
        patch = self._block.enter_context(pytest.MonkeyPatch.context())
        for name in ("fsync", "rename", "replace", "unlink"):
            patch.setattr(os, name, self._noting(name, getattr(os, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._note()
        self._block.close()

    def _noting(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(*values: Any, **named: Any) -> None:
            with self._lock:
                flushed = Path(f"/proc/self/fd/{values[0]}")
                self._note_kill(flushed.readlink() if name == "fsync" else None)
                call(*values, **named)
                if name == "unlink":
                    return
                if name == "fsync":
                    self._flush(flushed)
                else:
                    path = Path(values[1])
                    last = {path.name: path.stat().st_ino}
                    self._renamed = {path.parent.stat().st_ino: last}
                self._note()

        return noted

    def _flush(self, path: Path | str) -> None:
        # It stays open, so that no later file gets the number of its inode.
        descriptor = os.open(path, os.O_RDONLY)
        self._block.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        self._flushed[status.st_ino] = (
            _names_in(descriptor)
            if stat.S_ISDIR(status.st_mode)
            else os.pread(descriptor, status.st_size, 0)
        )

    def _note(self) -> None:
        now = {
            each.stat().st_ino: _names_in(each)
            for each in (self._folder, *self._folder.rglob("*"))
            if each.is_dir()
        }
        for kept, history in zip(DISKS, self.histories, strict=True):
            left = dict(self._left(self._root, "", kept, now))
            if history[-1:] != [left]:
                history.append(left)
        self._note_kill()

    def _note_kill(self, written: Path | None = None) -> None:
        """Note all files, and then the file `written` with its first half alone."""
        if self._kills:
            found = [path for path in self._folder.rglob("*") if path.is_file()]
            files = {
                str(path.relative_to(self._folder)): path.read_bytes() for path in found
            }
            half = {
                name: content[: len(content) // 2]
                for name, content in files.items()
                if self._folder / name == written
            }
            self.killed += [files, files | half]

    def _left(
        self,
        inode: int,
        path: str,
        kept: Callable[[Names, Names, Names], Names],
        now: Mapping[int, Names],
    ) -> Iterator[tuple[str, bytes]]:
        flushed = self._flushed.get(inode, b"")
        if isinstance(flushed, bytes) and inode not in now:
            yield path, flushed
            return
        names = {} if isinstance(flushed, bytes) else flushed
        found = kept(names, now.get(inode, {}), self._renamed.get(inode, {}))
        for name, inner in found.items():
            yield from self._left(inner, f"{path}/{name}".strip("/"), kept, now)


def _names_in(folder: Path | int) -> Names:
    with os.scandir(folder) as entries:
        return {each.name: each.inode() for each in entries}


def write_files(files: Files, folder: Path) -> None:
    """Write files into a new folder."""
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
