"""A file that grows from its beginning to its end, and is then on the disk."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from roxxel_format._store.local import sync_file

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class Output:
    """A new file. After an error or an interrupt, it takes nothing more.

    Args:
        path: The file; a file of that name is emptied.
        name: Name of the file in errors.

    Attributes:
        sync_s: Seconds spent waiting for the disk.
    """

    def __init__(self, path: Path, name: Path) -> None:
        self._name = name
        self._file = path.open("wb", buffering=0)
        self._is_broken = False
        self.sync_s = 0.0

    def write(self, data: bytes | memoryview) -> None:
        """Add a piece.

        Raises:
            OSError: The piece cannot be written, or a piece before it could not.
        """
        with self.unless_broken(), self._named(), memoryview(data) as rest:
            start = 0
            while start < len(rest):
                start += self._file.write(rest[start:])

    def finish(self) -> None:
        """Bring the file to the disk and close it.

        Raises:
            OSError: The disk cannot take it, or a piece could not be written.
        """
        with self.unless_broken():
            began = time.perf_counter()
            with self._named():
                sync_file(self._file.fileno())
            self.sync_s += time.perf_counter() - began
            self._file.close()

    def abort(self) -> None:
        """Close the file as it is."""
        self._is_broken = True
        self._file.close()

    @contextmanager
    def unless_broken(self) -> Generator[None]:
        """Run the block; if it does not get to its end, the file takes nothing more."""
        if self._is_broken:
            raise OSError(
                f"{self._name}: a write before this one has failed, so the shard was "
                "given up; write it again"
            )
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    @contextmanager
    def _named(self) -> Generator[None]:
        """Name the shard in errors of the system."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}; the shard was given up, "
                "so make room and write again",
                str(self._name),
            ) from error
