"""Items of a sequence, and lazy datasets over them.

`dataset.map(f).shuffle(seed).take(n)` loads no item. All classes are in one module,
because the base class has a method that makes each of its subclasses.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from functools import lru_cache
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from roxxel_curriculum import make_key, permute

from roxxel_loader._arguments import check_at_least, check_callable, check_integers
from roxxel_loader._guard import Guard

from ._dataset import add_item_note, check_index, fetch, load_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from ._dataset import Dataset

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class LazyDataset(ABC, Generic[T]):
    """The base class of this package's datasets: a `Dataset` with methods to chain.

    Example:
        >>> from roxxel_loader import RangeDataset
        >>> list(RangeDataset(10).map(lambda n: n * n).skip(7))
        [49, 64, 81]
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> T:
        """Return the item at `index`; a negative index counts from the end."""

    def __iter__(self) -> Iterator[T]:
        for index in range(len(self)):
            yield self[index]

    def map(self, function: Callable[[T], U]) -> MappedDataset[T, U]:
        """Return the items mapped by `function`, called when an item is loaded."""
        return MappedDataset(self, function)

    def map_batch(
        self, function: Callable[[list[T]], U], batch_size: int = 32
    ) -> MappedBatchDataset[T, U]:
        """Return what `function` makes of each `batch_size` consecutive items."""
        return MappedBatchDataset(self, function, batch_size)

    def filter(self, predicate: Callable[[T], bool]) -> FilteredDataset[T]:
        """Return the items that `predicate` holds for; see `FilteredDataset`."""
        return FilteredDataset(self, predicate)

    def shuffle(self, seed: int = 0) -> ShuffledDataset[T]:
        """Return the items in an order that depends on `seed`."""
        return ShuffledDataset(self, seed)

    def slice(
        self, start: int, stop: int | None = None, step: int = 1
    ) -> SlicedDataset[T]:
        """Return the items `start`, `start + step`, and so on below `stop`."""
        return SlicedDataset(self, start, stop, step)

    def take(self, num_items: int) -> SlicedDataset[T]:
        """Return the first `num_items` items, or all if there are fewer."""
        check_at_least(0, num_items=num_items)
        return self.slice(0, num_items)

    def skip(self, num_items: int) -> SlicedDataset[T]:
        """Return the items after the first `num_items`."""
        check_at_least(0, num_items=num_items)
        return self.slice(num_items)

    def split_dataset_by_node(self, world_size: int, rank: int) -> SlicedDataset[T]:
        """Return one of `world_size` consecutive parts, by its number from 0.

        The parts differ by at most one item; the longer parts are the first ones. A
        `Dataloader` needs no such split: each process loads its rows of every batch.

        Raises:
            ValueError: `world_size` is less than 1, or `rank` not below `world_size`.
        """
        check_at_least(1, world_size=world_size)
        check_at_least(0, rank=rank)
        if rank >= world_size:
            raise ValueError(f"rank is {rank}; give one in [0, {world_size})")
        size, longer = divmod(len(self), operator.index(world_size))
        start = operator.index(rank) * size + min(operator.index(rank), longer)
        return self.slice(start, start + size + (rank < longer))

    def sample(self, num_items: int, seed: int = 0) -> SampledDataset[T]:
        """Return `num_items` distinct items, chosen by `seed`."""
        return SampledDataset(self, num_items, seed)

    def concat(self, *others: Dataset[U]) -> ConcatDataset[T | U]:
        """Return the items of this dataset, then the items of the others."""
        return ConcatDataset[T | U](self, *others)

    @overload
    def zip(self, other: Dataset[U], /) -> ZipDataset[tuple[T, U]]: ...
    @overload
    def zip(self, *others: Dataset[Any]) -> ZipDataset[tuple[Any, ...]]: ...

    def zip(self, *others: Dataset[Any]) -> ZipDataset[Any]:
        """Return tuples that hold one item of each dataset."""
        return ZipDataset(self, *others)

    def cache(self, max_items: int | None = None) -> CachedDataset[T]:
        """Return the same items, each kept in memory after its first use."""
        return CachedDataset(self, max_items)


class BulkDataset(LazyDataset[T]):
    """Loads items in bulk; one item is a bulk of one.

    The base class of datasets in this package. A dataset of your own needs only the two
    methods of `Dataset`.
    """

    @abstractmethod
    def _load(self, indices: list[int]) -> list[T]:
        """Return the items at `indices`, which are in range."""

    def __getitem__(self, index: int, /) -> T:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        size = len(self)
        return self._load([check_index(index, size) for index in indices])


class SimpleDataset(BulkDataset[T]):
    """The items of a sequence, in its order.

    Args:
        data: Any object with a length that can be indexed. The items of an array are
            its rows. The data is not copied.

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
    """The integers of a range; none of them is stored.

    Args:
        start: First integer; without `stop`, the range is `[0, start)`.
        stop: One past the last integer.
        step: Distance between neighbours.

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


class MappedDataset(BulkDataset[U], Generic[T, U]):
    """The items of a dataset, mapped by a function whenever an item is loaded.

    Args:
        dataset: Dataset of the items.
        function: Called with one item; may be jitted. With several workers, several
            threads call it at the same time. For a function of whole batches, use
            `Dataloader.map_batches`.

    Example:
        >>> MappedDataset(["a", "b"], str.upper)[1]
        'B'
    """

    def __init__(self, dataset: Dataset[T], function: Callable[[T], U]) -> None:
        check_callable(function=function)
        self._dataset = dataset
        self._function = function

    def __len__(self) -> int:
        return len(self._dataset)

    def _load(self, indices: list[int]) -> list[U]:
        mapped: list[U] = []
        for index, item in zip(indices, fetch(self._dataset, indices), strict=True):
            try:
                mapped.append(self._function(item))
            except Exception as error:
                add_item_note(error, index)
                raise
        return mapped


class MappedBatchDataset(BulkDataset[U], Generic[T, U]):
    """What a function makes of each batch of consecutive items; an item for a batch.

    The items of a batch are loaded together, when the batch is used.

    Args:
        dataset: Dataset of the items.
        function: Called with a list of `batch_size` items, or of fewer at the end.
        batch_size: Items per call.

    Example:
        >>> list(MappedBatchDataset(range(5), sum, batch_size=2))
        [1, 5, 4]
    """

    def __init__(
        self,
        dataset: Dataset[T],
        function: Callable[[list[T]], U],
        batch_size: int = 32,
    ) -> None:
        check_callable(function=function)
        check_at_least(1, batch_size=batch_size)
        self._dataset = dataset
        self._function = function
        self._batch_size = operator.index(batch_size)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._dataset), self._batch_size)
        return whole + (rest > 0)

    def _load(self, indices: list[int]) -> list[U]:
        size, end = self._batch_size, len(self._dataset)
        batches = [range(i * size, min((i + 1) * size, end)) for i in indices]
        items = iter(fetch(self._dataset, list(chain.from_iterable(batches))))
        made: list[U] = []
        for index, batch in zip(indices, batches, strict=True):
            try:
                made.append(self._function(list(islice(items, len(batch)))))
            except Exception as error:
                add_item_note(error, index)
                raise
        return made


class ShuffledDataset(BulkDataset[T]):
    """The items of a dataset in an order that depends on the seed and their number.

    The order is a keyed bijection, so every item appears exactly once. No index array
    is built, however many items there are.

    Args:
        dataset: Dataset of the items.
        seed: Any integer. Every machine computes the same order from it.

    Example:
        >>> sorted(ShuffledDataset(["a", "b", "c"], seed=1))
        ['a', 'b', 'c']
    """

    def __init__(self, dataset: Dataset[T], seed: int = 0) -> None:
        self._dataset = dataset
        self._key = make_key("shuffle", seed)

    def __len__(self) -> int:
        return len(self._dataset)

    def _load(self, indices: list[int]) -> list[T]:
        positions = permute(indices, len(self), self._key).tolist()
        return fetch(self._dataset, positions)


class SampledDataset(BulkDataset[T]):
    """Distinct items of a dataset, chosen and ordered by a seed without an index array.

    Args:
        dataset: Dataset of the items.
        num_items: Number of items.
        seed: Any integer. With the same seed, a larger `num_items` only adds items.

    Raises:
        ValueError: `num_items` is negative or larger than the dataset.

    Example:
        >>> len(set(SampledDataset(range(100), 10)))
        10
    """

    def __init__(self, dataset: Dataset[T], num_items: int, seed: int = 0) -> None:
        check_integers(num_items=num_items)
        if not 0 <= num_items <= len(dataset):
            raise ValueError(
                f"{num_items} items cannot be drawn from {len(dataset)}; draw between "
                "0 and all of them"
            )
        self._dataset = dataset
        self._num_items = operator.index(num_items)
        self._key = make_key("sample", seed)

    def __len__(self) -> int:
        return self._num_items

    def _load(self, indices: list[int]) -> list[T]:
        positions = permute(indices, len(self._dataset), self._key).tolist()
        return fetch(self._dataset, positions)


class SlicedDataset(BulkDataset[T]):
    """The items `start`, `start + step`, and so on below `stop`.

    As in Python, the bounds may be negative and are clipped to the dataset.

    Args:
        dataset: Dataset of the items.
        start: First item.
        stop: One past the last item; None is the end of the dataset.
        step: Distance between items; with a negative step the order is reversed.

    Example:
        >>> list(SlicedDataset("abcdef", 1, None, 2))
        ['b', 'd', 'f']
    """

    def __init__(
        self,
        dataset: Dataset[T],
        start: int | None,
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        self._dataset = dataset
        self._range = range(len(dataset))[slice(start, stop, step)]

    def __len__(self) -> int:
        return len(self._range)

    def _load(self, indices: list[int]) -> list[T]:
        return fetch(self._dataset, [self._range[index] for index in indices])


class FilteredDataset(BulkDataset[T]):
    """The items that `predicate` holds for, in their order.

    The first use makes one pass over the dataset on the calling thread; a `Dataloader`
    makes the pass at construction. The dataset keeps 8 bytes per passing item. If the
    pass takes too long, filter a `StreamingDataset`, or store the result.

    Args:
        dataset: Dataset of the items.
        predicate: Called once with each item; must be deterministic.

    Example:
        >>> list(FilteredDataset(range(6), lambda n: n % 2 == 0))
        [0, 2, 4]
    """

    def __init__(self, dataset: Dataset[T], predicate: Callable[[T], bool]) -> None:
        check_callable(predicate=predicate)
        self._dataset = dataset
        self._predicate = predicate
        self._kept: npt.NDArray[np.int64] | None = None
        self._guard = Guard()

    def __len__(self) -> int:
        return len(self._positions())

    def _load(self, indices: list[int]) -> list[T]:
        return fetch(self._dataset, self._positions()[indices].tolist())

    def _positions(self) -> npt.NDArray[np.int64]:
        with self._guard.lock:
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


class ConcatDataset(BulkDataset[T]):
    """The items of the first dataset, then those of the second, and so on.

    Args:
        *datasets: One or more datasets.

    Raises:
        ValueError: There is no dataset.

    Example:
        >>> list(ConcatDataset(range(2), "ab"))
        [0, 1, 'a', 'b']
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

    def _load(self, indices: list[int]) -> list[T]:
        return load_parts(
            self._stops,
            indices,
            lambda part, positions: fetch(self._datasets[part], positions),
        )


class ZipDataset(BulkDataset[T]):
    """Tuples of the items at the same index of several datasets.

    Args:
        *datasets: One or more datasets of the same length.

    Raises:
        ValueError: There is no dataset, or the lengths differ.

    Example:
        >>> list(ZipDataset(range(2), "ab"))
        [(0, 'a'), (1, 'b')]
    """

    @overload
    def __init__(
        self: ZipDataset[tuple[U, V]], first: Dataset[U], second: Dataset[V], /
    ) -> None: ...
    @overload
    def __init__(
        self: ZipDataset[tuple[Any, ...]], *datasets: Dataset[Any]
    ) -> None: ...

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

    def _load(self, indices: list[int]) -> list[Any]:
        columns = [fetch(dataset, indices) for dataset in self._datasets]
        return list(zip(*columns, strict=True))


class CachedDataset(LazyDataset[T]):
    """The items of a dataset, cached in memory at their first use.

    Each use returns the same object, so do not modify items in place. Two threads that
    request a new item at the same time may both load the item; one of the two is kept.

    Args:
        dataset: Dataset of the items.
        max_items: Number of items to keep; the least recently used item is dropped
            first. None keeps all items.

    Raises:
        ValueError: `max_items` is less than 1.

    Example:
        >>> dataset = CachedDataset([[1], [2]])
        >>> dataset[0] is dataset[0]
        True
    """

    def __init__(self, dataset: Dataset[T], max_items: int | None = None) -> None:
        if max_items is not None:
            check_at_least(1, max_items=max_items)
            max_items = operator.index(max_items)
        self._dataset = dataset
        self._max_items = max_items
        self._cached = lru_cache(max_items)(dataset.__getitem__)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self._max_items)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> T:
        return self._cached(check_index(index, len(self._dataset)))
