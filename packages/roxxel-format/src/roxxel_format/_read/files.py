"""Files that are read, on a disk or in a bucket, and maps of files.

If a process reads a mapped page past the end of a truncated file, the system kills the
process (SIGBUS). So every reader of a map calls `check_size` first. A truncation
between the check and the read still kills the process.

Each cache of open files is limited to a fair share of the process's descriptors. A full
cache closes its least recently used file. The caches use no locks, because a lock that
another thread holds during a fork stays locked in the child. Instead, each operation on
a shared dict or set is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import sys
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from os import SEEK_END, lseek
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    import numpy.typing as npt
    from roxxel_store.files import Output

# Arguments of `mmap.mmap`. Before Python 3.13, a map keeps a second descriptor open.
_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)

_LEAST_MAPS, _MOST_MAPS = 2, 4096
_MOST_REMOTE_FILES = 4096
_COPIED_BYTES = 32 << 20
_DESCRIPTORS_PER_MAP = 2

_T = TypeVar("_T")
_R = TypeVar("_R")


class OpenFile(ABC):
    """An open file: its bytes as copies (`read`), views and arrays.

    If `is_mapped`, views and arrays are a map of the file. Otherwise each call fetches
    the bytes. A file that changes after it was opened raises ShardError, which
    `how_changed` words.
    """

    how_changed: str
    path: str
    num_bytes: int
    is_mapped = False

    @abstractmethod
    def read(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes `[start, stop)`; checks the size of the file."""

    def changed(self) -> ShardError:
        """Return the error for a file that changed while it was open."""
        return ShardError(f"{self.path}: {self.how_changed}")

    def check_size(self) -> None:  # noqa: B027 - by default, `read` checks it
        """Raise ShardError if the size changed."""

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)`."""
        return memoryview(self.read(start, stop))

    def array(
        self, dtype: np.dtype[Any], count: int, byte_offset: int
    ) -> npt.NDArray[Any]:
        """Return items of the file, read-only, shape `(count,)`."""
        stop = byte_offset + count * dtype.itemsize
        return np.frombuffer(self.read(byte_offset, stop), dtype, count)

    @abstractmethod
    def will_need(self, start: int, stop: int, *, is_urgent: bool = False) -> None:
        """Prefetch the bytes `[start, stop)`."""

    def is_cold(self, byte_offset: int) -> bool:
        """Return whether reading a byte may have to wait for a disk."""
        del byte_offset
        return True

    def read_at_random(self, start: int, stop: int) -> None:
        """Advise that the bytes `[start, stop)` will not be read in order."""
        del start, stop


class MappedFile(OpenFile):
    """A read-only map of a file, and a descriptor to check the size of the file.

    The object owns and closes `fd`. The first use of the map creates it. Arrays over
    the map stay valid after the object is deleted.
    """

    is_mapped = True
    how_changed = (
        "the file was changed after it was opened; restore it, and open the corpus "
        "again"
    )

    def __init__(self, path: str, fd: int) -> None:
        self._fd = fd
        self.path = path
        self.status = os.fstat(fd)
        self.num_bytes = num_bytes = self.status.st_size
        # None before the first use; bytes for an empty file, which cannot be mapped.
        self._map: mmap.mmap | bytes | None = None if num_bytes else b""
        self._is_hinted = self._is_random = False

    # `close` is bound here because Python may delete `os` first when a program ends.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._fd)

    def check_size(self) -> None:
        """Raise ShardError if the file's size changed after it was opened."""
        # Use the descriptor, because the file may have been renamed or removed.
        if lseek(self._fd, 0, SEEK_END) != self.num_bytes:
            raise self.changed()

    def array(
        self, dtype: np.dtype[Any], count: int, byte_offset: int
    ) -> npt.NDArray[Any]:
        """Return a read-only view of items of the file, shape `(count,)`."""
        return np.frombuffer(self._mapped(), dtype, count, byte_offset)

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes `[start, stop)` without a copy; checks the file's size."""
        self.check_size()
        return memoryview(self._mapped())[start:stop]

    def read(self, start: int, stop: int) -> bytes:
        """Return a copy of the bytes `[start, stop)`, read through the descriptor."""
        self.check_size()
        data = os.pread(self._fd, stop - start, start)
        while len(data) < stop - start:
            more = os.pread(self._fd, stop - start - len(data), start + len(data))
            if not more:
                raise self.changed()
            data += more
        return data

    def will_need(self, start: int, stop: int, *, is_urgent: bool = False) -> None:
        """Advise the system that the bytes `[start, stop)` will be read soon.

        The first hint that is not urgent withdraws the advice of `read_at_random`,
        because a hinted read finds its pages anyway. Under `read_at_random`, Linux from
        6.3 on does not count a page as used when it is read through a map. So under
        memory pressure it evicts the corpus before files that are read once: next to
        such a file, 0 to 3 of 300 MiB stayed in memory with this advice, and 288 to 299
        without.
        """
        if not is_urgent:
            self._is_hinted = True
            if self._is_random:
                self._is_random = False
                self._advise(mmap.MADV_NORMAL, 0, self.num_bytes)
        self._advise(mmap.MADV_WILLNEED, start, stop)

    def is_cold(self, byte_offset: int) -> bool:
        """Return whether reading a byte may have to wait for a disk.

        False if the page is in the system's cache. Only Linux can say so, and not for
        every file system.
        """
        if _NO_WAIT is None:
            return True
        try:
            return os.preadv(self._fd, [bytearray(1)], byte_offset, _NO_WAIT) == 0
        except OSError:  # The page is not there, or the file system cannot say so.
            return True

    def read_at_random(self, start: int, stop: int) -> None:
        """Advise the system not to read ahead in `[start, stop)`, until a hint comes.

        For windows of 2 kB in a cold file, the system reads 380 times their bytes
        without the advice, and 3 times with it
        (`tests-integration/benchmarks/format_cold.py`).
        """
        if self._is_hinted:
            return
        self._is_random = True
        self._advise(mmap.MADV_RANDOM, start, stop - stop % mmap.PAGESIZE)

    def _advise(self, advice: int, start: int, stop: int) -> None:
        start -= start % mmap.PAGESIZE
        mapped = self._mapped()
        if isinstance(mapped, mmap.mmap) and start < stop:
            # A file system may refuse the advice; every read still works.
            with contextlib.suppress(OSError):
                mapped.madvise(advice, start, stop - start)

    def _mapped(self) -> mmap.mmap | bytes:
        found = self._map
        if found is None:
            size, access = self.num_bytes, mmap.ACCESS_READ
            found = with_room(
                lambda: mmap.mmap(self._fd, size, access=access, **_OPTIONS)
            )
            self._map = found
        return found


class ItemReads:
    """The items of a file that is not mapped; `read(start, stop)` returns a part."""

    def __init__(self, read: Callable[[int, int], npt.NDArray[Any]]) -> None:
        self._read = read

    def __getitem__(self, items: slice[int, int, None], /) -> npt.NDArray[Any]:
        return self._read(items.start, items.stop)


Piece: TypeAlias = "npt.NDArray[Any] | ItemReads"
"""The items of one file."""


def copy_bytes(file: OpenFile, output: Output) -> None:
    """Append all bytes of a file; requests the next part while one is written."""
    size = file.num_bytes
    for start in range(0, size, _COPIED_BYTES):
        stop = min(start + _COPIED_BYTES, size)
        data = file.read(start, stop)
        file.will_need(stop, min(stop + _COPIED_BYTES, size))
        output.write(data)


class Files(ABC):
    """Opens the files of one corpus."""

    @property
    def copies(self) -> Container[int]:
        """Numbers of the shards of a bucket that have copies on a disk."""
        return ()

    @property
    def is_remote(self) -> bool:
        """Whether any shard is read by ranges."""
        return False

    @abstractmethod
    def open(self, path: str, num_bytes: int | None = None) -> OpenFile:
        """Open a file.

        `num_bytes` is the size by the manifest or an earlier opening; a file on a disk
        does not use it.
        """

    def open_listed(self, path: str, num_bytes: int) -> OpenFile:
        """Open a file that a manifest lists; raise ShardError if it is gone."""
        try:
            return self.open(path, num_bytes)
        except FileNotFoundError as error:
            raise missing_file(path) from error

    def will_open(self, path: str, spans: Iterable[tuple[int, int]]) -> None:
        """Prefetch the ranges that opening a file reads."""
        del path, spans

    def release(self) -> None:  # noqa: B027 - by default, there is nothing
        """Forget what was prefetched."""


_RELEASES: set[weakref.WeakMethod[Callable[[], object]]] = set()


def register(release: Callable[[], object]) -> None:
    """Give the object whose method this is a share of the process's descriptors.

    The shares of other objects become smaller; each closes files at its next use. The
    method releases all maps of its object, and is called if descriptors run out.
    """
    _RELEASES.add(weakref.WeakMethod(release, _RELEASES.discard))


def max_maps() -> int:
    """Return the number of maps that each registered object may keep.

    One object may use an eighth of the process's descriptors, and all of them together
    a quarter. The rest is for other code.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_MAPS
    num_maps = soft // _DESCRIPTORS_PER_MAP
    share = num_maps // 4 // max(1, len(_RELEASES))
    return max(_LEAST_MAPS, min(_MOST_MAPS, num_maps // 8, share))


def with_room(make: Callable[[], _R]) -> _R:
    """Return `make()`; if descriptors or memory run out, release maps and retry."""
    try:
        return make()
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
    for reference in list(_RELEASES):
        release = reference()
        if release is not None:
            release()
    return make()


class MapCache(Generic[_T]):
    """The open files of a corpus, by number. Safe to use from many threads.

    The cache keeps the `max_maps()` most recently used mapped files, and up to 4096
    files in buckets, which need no descriptors. An evicted file stays mapped until the
    last array over its map is deleted.
    """

    def __init__(
        self,
        make: Callable[[int], _T],
        is_mapped: Callable[[_T], bool],
        copies: Container[int] = (),
    ) -> None:
        self._make = make
        self._is_mapped = is_mapped
        self._copies = copies
        self._maps: OrderedDict[int, _T] = OrderedDict()
        self._remote: OrderedDict[int, _T] = OrderedDict()

    def __getitem__(self, number: int) -> _T:
        """Return file `number`; open it if it is not in the cache."""
        files = self._maps
        found = files.get(number)
        if found is None:
            files = self._remote
            # When a copy on the disk arrives, it replaces the object in the bucket.
            found = None if number in self._copies else files.get(number)
        if found is None:
            # If two threads open a file at once, the second replaces the first.
            found = with_room(lambda: self._make(number))
            files = self._maps if self._is_mapped(found) else self._remote
            files[number] = found
        try:
            files.move_to_end(number)
            if len(files) > _LEAST_MAPS:  # Else the limit need not be computed.
                most = max_maps() if files is self._maps else _MOST_REMOTE_FILES
                while len(files) > most:
                    files.popitem(last=False)
        except KeyError:  # Another thread has evicted the file.
            pass
        return found

    def __contains__(self, number: int) -> bool:
        """Return whether a file is in the cache."""
        return number in self._maps or number in self._remote

    def clear(self) -> None:
        """Evict all files."""
        self._maps.clear()
        self._remote.clear()


def missing_file(path: str) -> ShardError:
    """Return the error for a file that a manifest lists but that is gone."""
    return ShardError(
        f"{path}: the file is missing, because the corpus was replaced or compacted, "
        "the column was replaced, or the file was removed; open the corpus again (a "
        "compacted one has the same values), or restore the file"
    )
