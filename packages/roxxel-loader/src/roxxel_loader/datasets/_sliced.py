"""A part of the items, by position."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ._dataset import check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._dataset import Dataset

T = TypeVar("T")


class SlicedDataset(LazyDataset[T]):
    """The items `start`, `start + step`, and so on below `stop`.

    The bounds are Python's: they may be negative, and are cut to the dataset.

    Args:
        dataset: Where the items come from.
        start: First item.
        stop: One past the last; None is the end of the dataset.
        step: Distance between items; negative ones go backwards.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        start: int | None,
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._positions = range(len(dataset))[slice(start, stop, step)]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: int, /) -> T:
        return self._dataset[self._positions[check_index(index, len(self))]]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        size = len(self)
        positions = [self._positions[check_index(index, size)] for index in indices]
        return fetch(self._dataset, positions)
