"""Datasets over the items of a sequence, and over a range of integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ._dataset import check_index, fetch
from ._lazy import BulkDataset, LazyDataset

if TYPE_CHECKING:
    from ._dataset import Dataset

T = TypeVar("T")


class SimpleDataset(BulkDataset[T]):
    """The items of a sequence, in its order.

    Args:
        data: Any object with a length and items by index; it is not copied. The items
            of an array are its rows.

    Example:
        >>> SimpleDataset(["a", "b", "c"])[1]
        'b'
    """

    def __init__(self, data: Dataset[T]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def _load(self, indices: list[int]) -> list[T]:
        return fetch(self._data, indices)


class RangeDataset(LazyDataset[int]):
    """The integers of a range, computed when they are loaded.

    Args:
        start: First integer; if `stop` is None, the range is `[0, start)`.
        stop: One past the last integer.
        step: Difference between consecutive integers.

    Example:
        >>> list(RangeDataset(2, 9, 3))
        [2, 5, 8]
    """

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        first, last = (0, start) if stop is None else (start, stop)
        self._range = range(first, last, step)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: int, /) -> int:
        return self._range[check_index(index, len(self._range))]
