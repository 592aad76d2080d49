"""Maps of shards: made when first needed, and only so many at a time."""

from __future__ import annotations

import errno
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_format._read.shard import Shard
    from roxxel_format._read.shard_map import ShardMap


T = TypeVar("T")

_LOCK = threading.Lock()
# Descriptors belong to the process, so its corpora must know of one another.
_CACHES: weakref.WeakSet[MapCache] = weakref.WeakSet()


def max_maps(num_corpora: int) -> int:
    """Return how many maps each of some corpora may keep.

    Each map holds two descriptors. They have an eighth of those that the process may
    have, and all corpora together a quarter; at most 4096, at least 2.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 4096
    return max(2, min(4096, soft // 16, soft // 8 // max(1, num_corpora)))


def with_room(make: Callable[[], T]) -> T:
    """Return what `make` returns; let go of maps where it finds no room.

    Room is descriptors, of the process and of the system, and addresses.

    Raises:
        OSError: There is no room even then, or something else is wrong.
    """
    try:
        return make()
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
            raise
    with _LOCK:
        caches = list(_CACHES)
    for cache in caches:
        cache.let_go()
    return make()


class MapCache:
    """The maps of a corpus, the least recently used dropped first.

    A dropped map stays in memory until the last view of it is gone. Safe to use from
    many threads.

    Args:
        shards: The corpus.
        max_maps: How many to keep; None for a share of what the process may have.
        checked: As for `ShardMap`.
        first: The map of the first shard, where it was made already.

    Attributes:
        kept: Returns the map of a shard if it is kept, without noting that it is used.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        max_maps: int | None,
        *,
        checked: bool,
        first: ShardMap | None = None,
    ) -> None:
        self._shards = shards
        self._given = max_maps
        self._max_maps = 1  # until `share`; of a lone shard it is all
        self._checked = checked
        self._maps: OrderedDict[int, ShardMap] = OrderedDict()
        if first is not None:
            self._maps[0] = first
        self.kept = self._maps.get
        self._lock = threading.RLock()
        with _LOCK:
            _CACHES.add(self)
            # A lone shard leaves the shares of others as they are.
            caches = list(_CACHES) if len(shards) > 1 else []
        for cache in caches:
            cache.share(len(caches))

    def share(self, num_corpora: int) -> None:
        """Keep no more maps than one of so many corpora may."""
        with self._lock:
            self._max_maps = self._given or max_maps(num_corpora)
            self._trim()

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, shard: int) -> ShardMap:
        found = self._maps.get(shard)
        if found is not None and len(self._shards) <= self._max_maps:
            return found  # none is dropped for room, so their order does not matter
        with self._lock:
            found = self._maps.get(shard)
            if found is not None:
                self._maps.move_to_end(shard)
                return found
            found = self._map(shard)
            self._maps[shard] = found
            self._trim()
            return found

    def _trim(self) -> None:
        while len(self._maps) > self._max_maps:
            self._maps.popitem(last=False)

    def _map(self, shard: int) -> ShardMap:
        return with_room(lambda: self._shards[shard].map(checked=self._checked))

    def let_go(self) -> None:
        """Drop all maps, unless another thread is at work on them."""
        if self._lock.acquire(blocking=False):
            try:
                self._maps.clear()
            finally:
                self._lock.release()

    def clear(self) -> None:
        """Drop all maps."""
        with self._lock:
            self._maps.clear()
