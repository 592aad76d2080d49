"""Items kept after they were made once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

from roxxel_loader._arguments import check_at_least

from ._dataset import check_index
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from ._dataset import Dataset

T = TypeVar("T")


class CachedDataset(LazyDataset[T]):
    """The items of a dataset, kept in memory from the first time they are asked for.

    The same object is handed out each time, so items must not be changed in place. Two
    threads that ask for a new item at once may both make it; one of them is kept.

    Args:
        dataset: Where the items come from.
        max_items: Items kept; when full, the one unused for longest goes. None keeps
            all.

    Raises:
        ValueError: No item is to be kept.
    """

    def __init__(self, dataset: Dataset[T], max_items: int | None = None) -> None:
        if max_items is not None:
            check_at_least(1, max_items=max_items)
        self._dataset = dataset
        self._max_items = max_items
        self._items: dict[int, T] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> T:
        place = check_index(index, len(self._dataset))
        with self._lock:
            if place in self._items:
                item = self._items.pop(place)
                self._items[place] = item
                return item
        item = self._dataset[place]
        with self._lock:
            kept = self._items.setdefault(place, item)
            if self._max_items is not None and len(self._items) > self._max_items:
                del self._items[next(iter(self._items))]
        return kept

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())
