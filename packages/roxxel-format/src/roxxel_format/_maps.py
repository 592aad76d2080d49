"""Maps of shards: made when first needed, and only so many at a time."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from roxxel_format._shard import Shard
    from roxxel_format._shard_map import ShardMap


def default_max_maps() -> int:
    """Return how many maps a corpus keeps: an eighth of the process's descriptors.

    Each map holds a descriptor. Between 16 and 4096.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 4096
    return max(16, min(4096, soft // 8))


class MapCache:
    """The maps of a corpus, the least recently used dropped first.

    A dropped map stays in memory until the last view of it is gone. Safe to use from
    many threads.

    Args:
        shards: The corpus.
        max_maps: How many to keep.
        keep_open: Keep descriptors for checked reads.
    """

    def __init__(
        self, shards: Sequence[Shard], max_maps: int, *, keep_open: bool
    ) -> None:
        self._shards = shards
        self._max_maps = max_maps
        self._keep_open = keep_open
        self._maps: OrderedDict[int, ShardMap] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._maps)

    def __getitem__(self, shard: int) -> ShardMap:
        with self._lock:
            found = self._maps.get(shard)
            if found is not None:
                self._maps.move_to_end(shard)
                return found
            found = self._map(shard)
            self._maps[shard] = found
            if len(self._maps) > self._max_maps:
                self._maps.popitem(last=False)
            return found

    def _map(self, shard: int) -> ShardMap:
        try:
            return self._shards[shard].map(keep_open=self._keep_open)
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOMEM}:
                raise
            self._maps.clear()  # others in this process need descriptors too
            return self._shards[shard].map(keep_open=self._keep_open)

    def clear(self) -> None:
        """Drop all maps."""
        with self._lock:
            self._maps.clear()
