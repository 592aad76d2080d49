"""A dataset that caches its items."""

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
    """The items of a dataset, cached in memory at their first use.

    Each use returns the same object, so do not modify items in place. Two threads that
    request a new item at the same time may both make it; one result is kept.

    Args:
        dataset: Where the items come from.
        max_items: Items kept; the least recently used is dropped first. None keeps
            all.

    Raises:
        ValueError: `max_items` is less than 1.
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
        position = check_index(index, len(self._dataset))
        with self._lock:
            if position in self._items:
                item = self._items.pop(position)
                self._items[position] = item
                return item
        item = self._dataset[position]
        with self._lock:
            kept = self._items.setdefault(position, item)
            if self._max_items is not None and len(self._items) > self._max_items:
                del self._items[next(iter(self._items))]
        return kept

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())
