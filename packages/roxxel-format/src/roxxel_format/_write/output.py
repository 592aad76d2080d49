"""A file that is written once, from its beginning to its end."""

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
    """A new file. After an error or an interrupt, every further write is an error.

    Args:
        path: The file; an existing file is truncated.
        name: Names the file in errors.

    Attributes:
        sync_s: Seconds spent waiting for the disk.
    """

    def __init__(self, path: Path, name: Path) -> None:
        self._name = name
        self._file = path.open("wb", buffering=0)
        self._is_broken = False
        self.sync_s = 0.0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes.

        Raises:
            OSError: These bytes cannot be written, or an earlier write failed.
        """
        with self.unless_broken(), self._named(), memoryview(data) as rest:
            start = 0
            while start < len(rest):
                start += self._file.write(rest[start:])

    def finish(self) -> None:
        """Flush the file to the disk and close it.

        Raises:
            OSError: The flush failed, or an earlier write failed.
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
        """Run the block; if it raises, every further write is an error."""
        if self._is_broken:
            raise OSError(
                f"{self._name}: an earlier write failed, so this shard cannot be "
                "completed; write it again"
            )
        try:
            yield
        except BaseException:
            self._is_broken = True
            raise

    @contextmanager
    def _named(self) -> Generator[None]:
        """Name the file in errors of the system."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"{os.strerror(error.errno or 0)}; the shard was discarded, "
                "so make room and write again",
                str(self._name),
            ) from error
