"""Items that are there already: a sequence, an array, a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ._dataset import check_index
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Indexable(Protocol[T_co]):
    """What `SimpleDataset` takes: a list, a tuple, a numpy array, another dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class SimpleDataset(LazyDataset[T]):
    """The items of a sequence, in its order.

    Args:
        data: Anything with a length that can be indexed; an array's items are its rows.
            It is used where it lies, not copied.
    """

    def __init__(self, data: Indexable[T]) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int, /) -> T:
        return self._data[check_index(index, len(self._data))]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        data = self._data
        if isinstance(indices, range) and indices.step == 1:
            if indices:
                check_index(indices.start, len(data))
                check_index(indices.stop - 1, len(data))
            if type(data) is list:
                return cast("list[T]", data[indices.start : indices.stop])
        elif indices:
            check_index(min(indices), len(data))
            check_index(max(indices), len(data))
        many: Any = getattr(data, "__getitems__", None)
        if many is not None:
            return many(list(indices))
        return [data[index] for index in indices]


class RangeDataset(LazyDataset[int]):
    """The integers of a range, computed.

    Args:
        start: First integer; with no `stop`, the first is 0 and this one is the stop.
        stop: One past the last.
        step: Distance between neighbours.
    """

    def __init__(self, start: int, stop: int | None = None, step: int = 1) -> None:
        first, last = (0, start) if stop is None else (start, stop)
        self._range = range(first, last, step)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: int, /) -> int:
        return self._range[check_index(index, len(self._range))]
