"""One reserved range of addresses into which the shards of a corpus are mapped.

With all token sections in one array (with gaps between them that nobody reads), the
windows of a batch are gathered by one call of numpy however many shards they lie in. A
shard is mapped into its place when it is first needed, and stays there until nobody
holds the range any more: nothing is ever unmapped under a reader. The maps hold no
descriptors, so only `will_need` and `tokens`, not every batch, ask by path whether a
file was cut short.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.opening import changed, open_checked
from roxxel_format._read.windows import gather_rows
from roxxel_format._spec.layout import HEAD_SIZE

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._read.index import CorpusIndex
    from roxxel_format._spec.dtypes import Tokens

_PROT_NONE = 0
_MAP_FIXED = 0x10  # on Linux and macOS alike
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0x40
_FAILED = ctypes.c_void_p(-1).value
_LOCK = threading.Lock()
# The system counts the maps of a process, so its corpora must know of one another.
_MEMORIES: weakref.WeakSet[_Memory] = weakref.WeakSet()


def reserve(index: CorpusIndex) -> AddressRange | None:
    """Return a range for a corpus, None where the system does not give one.

    That is: no POSIX, a limit on addresses, or too many shards: all ranges together
    leave half of the maps that the process may have to others.
    """
    if os.name != "posix":
        return None
    with _LOCK:
        promised = sum(memory.num_maps for memory in _MEMORIES)
        if promised + len(index.shards) > _max_maps() // 2:
            return None
        try:
            return AddressRange(index)
        except OSError:
            return None


class AddressRange:
    """The token sections of a corpus, as one array with gaps."""

    def __init__(self, index: CorpusIndex) -> None:
        page = mmap.PAGESIZE
        self._bounds = np.array(index.bounds, np.int64)
        # The head is mapped too, for offsets must be whole pages of any size.
        num_tokens = np.diff(self._bounds)
        sizes = -(-(HEAD_SIZE + num_tokens * index.dtype.itemsize) // page) * page
        self._places = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
        self._shards = index.shards
        self._memory = _Memory(int(self._places[-1]), len(index.shards))
        self._array = self._memory.array().view(index.dtype)
        firsts = (self._places[:-1] + HEAD_SIZE) // index.dtype.itemsize
        self._shifts = firsts - self._bounds[:-1]
        self._stops = self._bounds[1:] + self._shifts
        # The same as Python's integers, which are quicker one at a time.
        self._spans: list[tuple[int, int]] = list(
            zip(firsts.tolist(), self._stops.tolist(), strict=True)
        )
        self._num_unmapped = len(index.shards)
        self._mapped = np.zeros(len(index.shards), np.bool_)
        self._files: dict[int, os.stat_result] = {}
        self._lock = threading.Lock()

    def gather(self, starts: npt.NDArray[np.int64], length: int) -> Tokens | None:
        """Return windows, of which a few may cross from one shard to the next.

        Args:
            starts: First token of each window, in the corpus, shape `(n,)`.
            length: Tokens of each, at least 1.

        Returns:
            A copy, shape `(n, length)`; None where a window touches three shards.
        """
        shards = self._bounds.searchsorted(starts, "right") - 1
        if self._num_unmapped and not self._mapped[shards].all():
            for shard in set(shards.tolist()):
                self._need(shard)
        places = self._shifts[shards] + starts
        stops = places + length
        (across,) = (stops > self._stops[shards]).nonzero()
        # A window that crosses is first gathered as if there were no gap behind its
        # shard, from memory that is mapped; then its second part is written over.
        seconds: list[tuple[int, int, int, int]] = []
        for row in across.tolist():
            shard = int(shards[row])
            _, stop = self._spans[shard]
            first, end = self._spans[shard + 1]
            rest = int(stops[row]) - stop
            if first + rest > end:
                return None
            self._need(shard + 1)
            seconds.append((row, length - rest, first, first + rest))
        array = self._array
        rows = gather_rows(array, places, length)
        for row, column, first, stop in seconds:
            rows[row, column:] = array[first:stop]
        return rows

    def tokens(self, shard: int) -> Tokens:
        """Return the tokens of a shard: a read-only view.

        Raises:
            ShardError: The file was cut short after it was mapped.
        """
        self.check_size(shard)
        first, stop = self._spans[shard]
        return self._array[first:stop]

    def will_need(self, shard: int, start: int, stop: int) -> None:
        """Ask the system to read the pages of tokens `[start, stop)` of a shard."""
        self._need(shard)
        size = self._array.itemsize
        first, _ = self._spans[shard]
        self._memory.will_need((first + start) * size, (first + stop) * size)

    def check_size(self, shard: int) -> None:
        """Map a shard, and check that its file has the size it was mapped with.

        Raises:
            ShardError: It has another.
        """
        self._need(shard)
        path, mapped = self._shards[shard].path, self._files[shard]
        try:
            found = Path(path).stat()
        except OSError:
            return  # Gone by name, but whole in the map.
        if os.path.samestat(found, mapped) and found.st_size != mapped.st_size:
            raise changed(path)

    def _need(self, shard: int) -> None:
        if self._num_unmapped and not self._mapped[shard]:
            self._map(shard)

    def _map(self, shard: int) -> None:
        with self._lock:
            if self._mapped[shard]:
                return
            place, after = self._places[shard : shard + 2].tolist()
            fd = open_checked(self._shards[shard].path, self._shards[shard].layout)
            try:
                self._files[shard] = os.fstat(fd)
                self._memory.map_file(fd, place, after - place)
            finally:
                os.close(fd)
            self._mapped[shard] = True
            self._num_unmapped -= 1


class _Memory:
    """Reserved addresses, given back when the last array over them is gone."""

    def __init__(self, size: int, num_maps: int) -> None:
        self._libc = _libc()
        self._size = size
        self.num_maps = num_maps
        self._address = self._mmap(
            None, size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANON | _MAP_NORESERVE
        )
        _MEMORIES.add(self)

    def __del__(self) -> None:
        if hasattr(self, "_address"):
            self._libc.munmap(self._address, self._size)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": (self._size,),
            "typestr": "|u1",
            "data": (self._address, True),
        }

    def array(self) -> npt.NDArray[np.uint8]:
        """Return all bytes: a read-only array that keeps the range alive."""
        return np.asarray(self)

    def map_file(self, fd: int, place: int, size: int) -> None:
        """Put the first bytes of a file into the range."""
        self._mmap(
            self._address + place,
            size,
            mmap.PROT_READ,
            mmap.MAP_SHARED | _MAP_FIXED,
            fd,
        )

    def will_need(self, start: int, stop: int) -> None:
        """Advise the system of bytes `[start, stop)`."""
        start -= start % mmap.PAGESIZE
        self._libc.madvise(self._address + start, stop - start, mmap.MADV_WILLNEED)

    def _mmap(
        self, address: int | None, size: int, prot: int, flags: int, fd: int = -1
    ) -> int:
        result = self._libc.mmap(address, size, prot, flags, fd, 0)
        if result is None or result == _FAILED:
            code = ctypes.get_errno()
            raise OSError(
                code,
                f"{os.strerror(code)}: cannot map {size} bytes; close other corpora, "
                "or raise the system's limit on maps (vm.max_map_count) or addresses",
            )
        return int(result)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    number, offset = ctypes.c_int, ctypes.c_int64
    libc.mmap.argtypes = [pointer, size, number, number, number, offset]
    libc.mmap.restype = pointer
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, number]
    return libc


def _max_maps() -> int:
    """Return how many maps a process may have; Linux's default elsewhere."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 65530
