"""Datasets one after the other."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from ._dataset import check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._dataset import Dataset

T = TypeVar("T")


class ConcatDataset(LazyDataset[T]):
    """The items of the first dataset, then those of the second, and so on.

    Args:
        *datasets: One or more datasets.

    Raises:
        ValueError: There is none.
    """

    def __init__(self, *datasets: Dataset[T]) -> None:
        if not datasets:
            raise ValueError(
                "there is nothing to concatenate; give one dataset or more"
            )
        self._datasets = datasets
        self._stops = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._stops[-1]

    def __getitem__(self, index: int, /) -> T:
        number, position = self._locate(index)
        return self._datasets[number][position]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`, each dataset's fetched together."""
        located = [self._locate(index) for index in indices]
        found: dict[tuple[int, int], T] = {}
        for number, dataset in enumerate(self._datasets):
            positions = [position for owner, position in located if owner == number]
            for position, item in zip(
                positions, fetch(dataset, positions), strict=True
            ):
                found[number, position] = item
        return [found[position] for position in located]

    def _locate(self, index: int) -> tuple[int, int]:
        position = check_index(index, self._stops[-1])
        number = bisect_right(self._stops, position)
        return number, position - (self._stops[number - 1] if number else 0)
