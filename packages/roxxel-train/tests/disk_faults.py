"""Lets one call of the operating system fail, in the files of one folder."""

from __future__ import annotations

import io
import itertools
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

_FUNCTIONS = (
    "fsync",
    "link",
    "listdir",
    "mkdir",
    "open",
    "remove",
    "rename",
    "replace",
    "rmdir",
    "scandir",
    "stat",
    "truncate",
    "unlink",
)
"""Functions of `os`, by which Python's own modules too use the disk."""


class Disk:
    """Counts the calls on files below `folder`; call number `fails_at` fails once.

    Attributes:
        num_calls: Calls so far.
        failed: Function and path of the call that failed; None so far.
    """

    def __init__(
        self, folder: Path, fails_at: int | None = None, number: int = 0
    ) -> None:
        self._folder = str(folder)
        self._fails_at, self._number = fails_at, number
        self._lock = threading.Lock()
        self._calls = itertools.count(1)
        self.num_calls = 0
        self.failed: tuple[str, str] | None = None

    def touch(self, name: str, path: object) -> None:
        """Count a call, and raise the error if it is its turn."""
        text = _path_of(path)
        if not text.startswith(self._folder):
            return
        with self._lock:
            self.num_calls = next(self._calls)
            if self.num_calls != self._fails_at:
                return
            self.failed = name, text
        raise OSError(self._number, os.strerror(self._number), text)

    @contextmanager
    def injected(self) -> Generator[Disk]:
        """Replace the functions of Python that use the disk."""
        plain: list[tuple[Any, str, Any]] = [
            (os, name, getattr(os, name)) for name in _FUNCTIONS
        ]
        for _, name, function in plain:
            setattr(os, name, self._counted(name, function))
        opened = io.open

        def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            self.touch("open", file)
            found = opened(file, mode, *args, **options)
            if _path_of(file).startswith(self._folder):
                return _File(found, self, _path_of(file))
            return found

        io.open = open_file
        try:
            yield self
        finally:
            io.open = opened
            for module, name, function in plain:
                setattr(module, name, function)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if args:
                self.touch(name, args[0])
            return function(*args, **options)

        return call


class _File:
    """A file whose reads and writes are counted."""

    def __init__(self, file: Any, disk: Disk, path: str) -> None:
        self._file, self._disk, self._path = file, disk, path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name not in {"read", "readinto", "readline", "write", "writelines"}:
            return found

        def call(*args: Any) -> Any:
            self._disk.touch(name, self._path)
            return found(*args)

        return call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


def _path_of(path: object) -> str:
    if isinstance(path, int):
        try:
            return os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
        except OSError:
            return ""
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return ""
