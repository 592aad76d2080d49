"""A cache of open files, shared fairly between the corpora of a process.

Descriptors belong to the process, so each open corpus may use a share of them; a corpus
closes its least recently used file first.
"""

from __future__ import annotations

import errno
import resource
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_MAPS = 4096
_DESCRIPTORS_PER_MAP = 2

_T = TypeVar("_T")
_R = TypeVar("_R")


class Holder(Protocol):
    """An open corpus, which holds maps."""

    def release(self) -> None:
        """Release all maps; the next read opens them again."""
        ...


_HOLDERS: weakref.WeakSet[Holder] = weakref.WeakSet()
_LOCK = threading.Lock()


def register(holder: Holder) -> None:
    """Add a corpus to those that share the descriptors of the process.

    The others release their maps, because each share becomes smaller.
    """
    with _LOCK:
        others = list(_HOLDERS)
        _HOLDERS.add(holder)
    for other in others:
        other.release()


def shared_max_maps() -> int:
    """Return how many maps each open corpus may keep.

    One corpus may use an eighth of the process's descriptors, and all corpora together
    a quarter; the rest is left to the program.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_MAPS
    num_maps = soft // _DESCRIPTORS_PER_MAP
    return max(
        2, min(_MOST_MAPS, num_maps // 8, num_maps // 4 // max(1, len(_HOLDERS)))
    )


def with_room(make: Callable[[], _R]) -> _R:
    """Return what `make` returns, after releasing all maps if it finds no room.

    Raises:
        OSError: `make` still finds no room, or failed for another reason.
    """
    try:
        return make()
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
    with _LOCK:
        holders = list(_HOLDERS)
    for holder in holders:
        holder.release()
    return make()


class MapCache(Generic[_T]):
    """The open files of a corpus, by their number. Safe to use from many threads.

    A dropped file stays mapped until the last array over it is gone.

    Args:
        make: Opens a file.
        max_maps: Returns how many files to keep.
    """

    def __init__(
        self, make: Callable[[int], _T], max_maps: Callable[[], int] = shared_max_maps
    ) -> None:
        self._make = make
        self._max_maps = max_maps
        self._maps: OrderedDict[int, _T] = OrderedDict()
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> _T:
        """Return a file; open it if it is not in the cache.

        Raises:
            OSError: The file cannot be opened.
        """
        with self._lock:
            found = self._maps.get(number)
            if found is not None:
                self._maps.move_to_end(number)
                return found
        # Opened without the lock, so that a slow disk delays only the threads that need
        # this file. If two threads open it at once, one of the maps is dropped.
        found = with_room(lambda: self._make(number))
        with self._lock:
            self._maps[number] = found
            most = self._max_maps()
            while len(self._maps) > most:
                self._maps.popitem(last=False)
        return found

    def clear(self) -> None:
        """Drop all files."""
        with self._lock:
            self._maps.clear()
