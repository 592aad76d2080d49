"""A function over every item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from roxxel_loader._arguments import check_callable

from ._dataset import add_item_note, check_index, fetch
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._dataset import Dataset

T = TypeVar("T")
U = TypeVar("U")


class MappedDataset(LazyDataset[U], Generic[T, U]):
    """The items of a dataset after a function, called whenever an item is asked for.

    Args:
        dataset: Where the items come from.
        function: Called with one item; may be jitted. With several workers it is called
            from several threads at once. A function that works on whole batches belongs
            to `Dataloader.map_batches`.
    """

    def __init__(self, dataset: Dataset[T], function: Callable[[T], U]) -> None:
        check_callable(function=function)
        self._dataset = dataset
        self._function = function

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> U:
        position = check_index(index, len(self._dataset))
        return self._function(self._dataset[position])

    def __getitems__(self, indices: Sequence[int]) -> list[U]:
        """Return the items at `indices`, fetched together and mapped one by one."""
        size = len(self._dataset)
        positions = [check_index(index, size) for index in indices]
        mapped: list[U] = []
        for index, item in zip(positions, fetch(self._dataset, positions), strict=True):
            try:
                mapped.append(self._function(item))
            except Exception as error:
                add_item_note(error, index)
                raise
        return mapped
