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

    How many there are is known only after all were looked at, so the first use makes
    one pass over the dataset, on the thread that asks; a `Dataloader` asks when it is
    made. What is kept of it is 8 bytes per item that passed. Where that pass would take
    long, filter a `StreamingDataset`, or store what has passed.

    Args:
        dataset: Where the items come from.
        predicate: Called once with each item; must always say the same of it.
    """

    def __init__(self, dataset: Dataset[T], predicate: Callable[[T], bool]) -> None:
        check_callable(predicate=predicate)
        self._dataset = dataset
        self._predicate = predicate
        self._kept: npt.NDArray[np.int64] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._places())

    def __getitem__(self, index: int, /) -> T:
        places = self._places()
        return self._dataset[int(places[check_index(index, len(places))])]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        places = self._places()
        for index in indices:
            check_index(index, len(places))
        return fetch(self._dataset, places[list(indices)].tolist())

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def _places(self) -> npt.NDArray[np.int64]:
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
