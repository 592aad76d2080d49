"""Datasets side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._dataset import check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._dataset import Dataset


class ZipDataset(LazyDataset[tuple[Any, ...]]):
    """Tuples of the items at the same index of several datasets.

    Args:
        *datasets: One or more datasets of the same length.

    Raises:
        ValueError: There is none, or lengths differ; nothing is cut off in silence.
    """

    def __init__(self, *datasets: Dataset[Any]) -> None:
        lengths = [len(dataset) for dataset in datasets]
        if len(set(lengths)) != 1:
            raise ValueError(
                f"datasets of {lengths} items cannot be zipped; give one or more of "
                "the same length, cutting the longer ones with SlicedDataset"
            )
        self._datasets = datasets

    def __len__(self) -> int:
        return len(self._datasets[0])

    def __getitem__(self, index: int, /) -> tuple[Any, ...]:
        position = check_index(index, len(self))
        return tuple(dataset[position] for dataset in self._datasets)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the tuples at `indices`."""
        size = len(self)
        positions = [check_index(index, size) for index in indices]
        return list(
            zip(*(fetch(dataset, positions) for dataset in self._datasets), strict=True)
        )
