"""The items that a predicate holds for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from roxxel_loader._arguments import check_callable

from ._dataset import add_item_note, check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from ._dataset import Dataset

T = TypeVar("T")


class FilteredDataset(LazyDataset[T]):
    """The items that `predicate` holds for, in their order.

    The first use makes one pass over the dataset on the calling thread; a `Dataloader`
    makes the pass at construction. The dataset keeps 8 bytes per passing item. If the
    pass takes too long, filter a `StreamingDataset`, or store the result.

    Args:
        dataset: Where the items come from.
        predicate: Called once with each item; must be deterministic.
    """

    def __init__(self, dataset: Dataset[T], predicate: Callable[[T], bool]) -> None:
        check_callable(predicate=predicate)
        self._dataset = dataset
        self._predicate = predicate
        self._kept: npt.NDArray[np.int64] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._positions())

    def __getitem__(self, index: int, /) -> T:
        positions = self._positions()
        return self._dataset[int(positions[check_index(index, len(positions))])]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        positions = self._positions()
        for index in indices:
            check_index(index, len(positions))
        return fetch(self._dataset, positions[list(indices)].tolist())

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def _positions(self) -> npt.NDArray[np.int64]:
        if self._kept is None:
            with self._lock:
                if self._kept is None:
                    self._kept = np.fromiter(self._scan(), np.int64)
        return self._kept

    def _scan(self) -> Iterator[int]:
        for index in range(len(self._dataset)):
            try:
                keep = self._predicate(self._dataset[index])
            except Exception as error:
                add_item_note(error, index)
                raise
            if keep:
                yield index
