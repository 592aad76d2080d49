"""A file mapped into memory, whose size is checked before the map is read.

Reading a page behind the end of a truncated file ends the process (SIGBUS). So every
reader of a map calls `check_size` first. A truncation between the check and the read
still ends the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from os import SEEK_END, lseek
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

# From Python 3.13 on a map does not keep a second descriptor open.
_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class MappedFile:
    """A read-only map of a file, and a descriptor to check the size of the file.

    Arrays over the map stay valid after the object is gone.

    Args:
        path: Names the file in errors.
        fd: Descriptor of the file, owned by the new object.
        num_bytes: Size that the file must keep.

    Attributes:
        path: As given.
        num_bytes: As given.

    Raises:
        OSError: The system has no room for the map.
    """

    __slots__ = ("__weakref__", "_fd", "_map", "num_bytes", "path")

    def __init__(self, path: str, fd: int, num_bytes: int) -> None:
        self._fd = fd
        self.path = path
        self.num_bytes = num_bytes
        self._map: mmap.mmap | bytes = b""  # An empty file cannot be mapped.
        if num_bytes:
            self._map = mmap.mmap(fd, num_bytes, access=mmap.ACCESS_READ, **_OPTIONS)

    # `close` is bound here because `os` may be gone when a program ends.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)

    def check_size(self) -> None:
        """Check that the file has the size that it was opened with.

        Raises:
            ShardError: The file was truncated or extended.
        """
        # By descriptor, because the file may have been renamed or removed.
        if lseek(self._fd, 0, SEEK_END) != self.num_bytes:
            raise self.changed()

    def changed(self) -> ShardError:
        """Return the error for a file that changed while it was open."""
        return ShardError(
            f"{self.path}: the file was changed after it was opened; restore it, and "
            "open the corpus again"
        )

    def array(
        self, dtype: np.dtype[Any], count: int, byte_offset: int
    ) -> npt.NDArray[Any]:
        """Return items of the file: a read-only view, shape `(count,)`."""
        return np.frombuffer(self._map, dtype, count, byte_offset)

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)` of the file, without a copy.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        self.check_size()
        return memoryview(self._map)[start:stop]

    def read(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes `[start, stop)`, read through the descriptor.

        Raises:
            ShardError: The file was truncated after it was opened.
        """
        self.check_size()
        data = os.pread(self._fd, stop - start, start)
        while len(data) < stop - start:
            more = os.pread(self._fd, stop - start - len(data), start + len(data))
            if not more:
                raise self.changed()
            data += more
        return data

    def will_need(self, start: int, stop: int) -> None:
        """Advise the system that the bytes `[start, stop)` will be read soon."""
        self._advise(mmap.MADV_WILLNEED, start, stop)

    def read_at_random(self, start: int, stop: int) -> None:
        """Advise the system not to read ahead in the bytes `[start, stop)`.

        Without the advice, the system reads far more pages of a cold file than a
        window has (`tests-integration/benchmarks/format_cold.py`).
        """
        self._advise(mmap.MADV_RANDOM, start, stop - stop % mmap.PAGESIZE)

    def _advise(self, advice: int, start: int, stop: int) -> None:
        start -= start % mmap.PAGESIZE
        if isinstance(self._map, mmap.mmap) and start < stop:
            # A file system may refuse the advice, which changes no result.
            with contextlib.suppress(OSError):
                self._map.madvise(advice, start, stop - start)
