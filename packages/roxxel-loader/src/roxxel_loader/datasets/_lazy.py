"""Lazy datasets: over a sequence or a range, and over other datasets.

`dataset.map(f).shuffle(seed).take(n)` loads no item. These classes are in one module,
because `LazyDataset` has methods that construct its subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from roxxel_curriculum import make_key, permute
from roxxel_store.arguments import as_integer

from roxxel_loader._arguments import check_callable, seed_number

from ._dataset import call_for_item, check_index, fetch, load_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from roxxel_loader._arguments import Seed

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
        """Return the results of `function`, called whenever an item is loaded."""
        return MappedDataset(self, function)

    def map_batch(
        self, function: Callable[[list[T]], U], batch_size: int = 32
    ) -> MappedBatchDataset[T, U]:
        """Return the results of `function` for each `batch_size` consecutive items."""
        return MappedBatchDataset(self, function, batch_size)

    def filter(self, predicate: Callable[[T], bool]) -> FilteredDataset[T]:
        """Return the items for which `predicate` is true; see `FilteredDataset`."""
        return FilteredDataset(self, predicate)

    def shuffle(self, seed: Seed = 0) -> ShuffledDataset[T]:
        """Return the items in a random order that depends on `seed`."""
        return ShuffledDataset(self, seed)

    def slice(
        self, start: int, stop: int | None = None, step: int = 1
    ) -> SlicedDataset[T]:
        """Return the items `start`, `start + step`, and so on below `stop`."""
        return SlicedDataset(self, start, stop, step)

    def take(self, num_items: int) -> SlicedDataset[T]:
        """Return the first `num_items` items, or all if there are fewer."""
        num_items = as_integer("num_items", num_items, 0)
        return self.slice(0, min(num_items, len(self)))

    def skip(self, num_items: int) -> SlicedDataset[T]:
        """Return the items after the first `num_items`."""
        num_items = as_integer("num_items", num_items, 0)
        return self.slice(min(num_items, len(self)))

    def split_dataset_by_node(self, world_size: int, rank: int) -> SlicedDataset[T]:
        """Return part number `rank`, from 0, of `world_size` consecutive parts.

        The lengths of the parts differ by at most one item; longer parts are first. Do
        not split the dataset of a `Dataloader`, which splits every batch by process.

        Raises:
            ValueError: `world_size` is less than 1, or `rank` is not in [0,
                `world_size`).
        """
        world_size = as_integer("world_size", world_size, 1)
        rank = as_integer("rank", rank, 0)
        if rank >= world_size:
            raise ValueError(f"rank is {rank}; give a rank in [0, {world_size})")
        size, longer = divmod(len(self), world_size)
        start = rank * size + min(rank, longer)
        return self.slice(start, start + size + (rank < longer))

    def sample(self, num_items: int, seed: Seed = 0) -> SampledDataset[T]:
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
        """Return tuples of the items at the same index; see `ZipDataset`."""
        return ZipDataset(self, *others)

    def cache(self, max_items: int | None = None) -> CachedDataset[T]:
        """Return the same items, cached in memory; see `CachedDataset`."""
        return CachedDataset(self, max_items)


class BulkDataset(LazyDataset[T]):
    """Base class of this package's datasets that load several items in one call."""

    @abstractmethod
    def _load(self, indices: list[int]) -> list[T]:
        """Return the items at `indices`, all in `[0, len(self))`."""

    def __getitem__(self, index: int, /) -> T:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Return the items at `indices`."""
        size = len(self)
        return self._load([check_index(index, size) for index in indices])


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


class MappedDataset(BulkDataset[U], Generic[T, U]):
    """The results of a function of each item, called whenever the item is loaded.

    Args:
        dataset: Dataset of the items.
        function: Called with one item; may be jitted. With several workers, several
            threads call `function` at the same time. For a function of whole batches,
            use `Dataloader.map_batches`.

    Example:
        >>> MappedDataset(["a", "b"], str.upper)[1]
        'B'
    """

    def __init__(self, dataset: Dataset[T], function: Callable[[T], U]) -> None:
        check_callable(function=function)
        self._dataset, self._function = dataset, function

    def __len__(self) -> int:
        return len(self._dataset)

    def _load(self, indices: list[int]) -> list[U]:
        items = fetch(self._dataset, indices)
        return list(map(partial(call_for_item, self._function), items, indices))


class MappedBatchDataset(BulkDataset[U], Generic[T, U]):
    """The results of a function of `batch_size` consecutive items, one per call.

    Args:
        dataset: Dataset of the items.
        function: Called with a list of `batch_size` items whenever its result is
            loaded; the last list may be shorter.
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
        self._dataset, self._function = dataset, function
        self._batch_size = as_integer("batch_size", batch_size, 1)

    def __len__(self) -> int:
        whole, rest = divmod(len(self._dataset), self._batch_size)
        return whole + (rest > 0)

    def _load(self, indices: list[int]) -> list[U]:
        size, end = self._batch_size, len(self._dataset)
        batches = [range(i * size, min((i + 1) * size, end)) for i in indices]
        items = iter(fetch(self._dataset, list(chain.from_iterable(batches))))
        lists = (list(islice(items, len(batch))) for batch in batches)
        return list(map(partial(call_for_item, self._function), lists, indices))


class ShuffledDataset(BulkDataset[T]):
    """The items of a dataset in a shuffled order.

    The seed and the number of items determine the order. A keyed bijection computes the
    order, so every item appears exactly once, and the memory use does not depend on the
    number of items.

    Args:
        dataset: Dataset of the items.
        seed: Any integer, or a key of `jax.random`, which is converted to the integer
            of its bits. The same seed gives the same order on every machine.

    Example:
        >>> sorted(ShuffledDataset(["a", "b", "c"], seed=1))
        ['a', 'b', 'c']
    """

    def __init__(self, dataset: Dataset[T], seed: Seed = 0) -> None:
        self._dataset = dataset
        self._key = make_key("shuffle", seed_number(seed))

    def __len__(self) -> int:
        return len(self._dataset)

    def _load(self, indices: list[int]) -> list[T]:
        positions = permute(indices, len(self), self._key).tolist()
        return fetch(self._dataset, positions)


class SampledDataset(BulkDataset[T]):
    """Distinct items of a dataset; the seed determines the choice and the order.

    Args:
        dataset: Dataset of the items.
        num_items: Number of items to draw.
        seed: Any integer, or a key of `jax.random`, which is converted to the integer
            of its bits. With the same seed, a larger `num_items` appends items.

    Raises:
        ValueError: `num_items` is negative or larger than the dataset.

    Example:
        >>> len(set(SampledDataset(range(100), 10)))
        10
    """

    def __init__(self, dataset: Dataset[T], num_items: int, seed: Seed = 0) -> None:
        num_items = as_integer("num_items", num_items, 0)
        if num_items > len(dataset):
            raise ValueError(
                f"{num_items} items cannot be drawn from {len(dataset)}; give "
                f"num_items in [0, {len(dataset)}]"
            )
        self._dataset, self._num_items = dataset, num_items
        self._key = make_key("sample", seed_number(seed))

    def __len__(self) -> int:
        return self._num_items

    def _load(self, indices: list[int]) -> list[T]:
        positions = permute(indices, len(self._dataset), self._key).tolist()
        return fetch(self._dataset, positions)


class SlicedDataset(BulkDataset[T]):
    """The items `start`, `start + step`, and so on below `stop`.

    As in Python, negative bounds count from the end.

    Args:
        dataset: Dataset of the items.
        start: First item.
        stop: One past the last item; None means the end of the dataset.
        step: Difference between consecutive indices; a negative step reverses the
            order.

    Raises:
        IndexError: A bound lies outside of the dataset.

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
        length = len(dataset)
        for name, bound in (("start", start), ("stop", stop)):
            if bound is not None and not -length <= bound <= length:
                raise IndexError(
                    f"{name}={bound} is outside of the dataset, which has {length} "
                    f"items; give a bound up to {length}, or None for the end"
                )
        self._range = range(length)[slice(start, stop, step)]

    def __len__(self) -> int:
        return len(self._range)

    def _load(self, indices: list[int]) -> list[T]:
        return fetch(self._dataset, [self._range[index] for index in indices])


class FilteredDataset(BulkDataset[T]):
    """The items for which `predicate` is true, in the order of the dataset.

    The first use loads every item on the calling thread; constructing a `Dataloader` is
    such a use. Memory use is 8 bytes per passing item. If loading every item takes too
    long, filter a `StreamingDataset`, or store the result.

    Args:
        dataset: Dataset of the items.
        predicate: Called once with each item; must be deterministic.

    Example:
        >>> list(FilteredDataset(range(6), lambda n: n % 2 == 0))
        [0, 2, 4]
    """

    def __init__(self, dataset: Dataset[T], predicate: Callable[[T], bool]) -> None:
        check_callable(predicate=predicate)
        self._dataset, self._predicate = dataset, predicate

    def __len__(self) -> int:
        return len(self._positions)

    def _load(self, indices: list[int]) -> list[T]:
        return fetch(self._dataset, self._positions[indices].tolist())

    @cached_property
    def _positions(self) -> npt.NDArray[np.int64]:
        indices = range(len(self._dataset))
        kept = (i for i in indices if call_for_item(self._passes, i, i))
        return np.fromiter(kept, np.int64)

    def _passes(self, index: int) -> bool:
        return self._predicate(self._dataset[index])


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
                "no dataset was given to concatenate; give one or more datasets"
            )
        self._datasets = datasets
        self._stops = list(accumulate(len(dataset) for dataset in datasets))

    def __len__(self) -> int:
        return self._stops[-1]

    def _load(self, indices: list[int]) -> list[T]:
        parts = self._datasets
        return load_parts(self._stops, indices, lambda k, at: fetch(parts[k], at))


class ZipDataset(BulkDataset[T]):
    """Tuples of the items that several datasets have at the same index.

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
                f"datasets of {lengths} items cannot be zipped; give one or more "
                "datasets of one length, and cut longer datasets with SlicedDataset"
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
    request an uncached item at the same time may both load the item.

    Args:
        dataset: Dataset of the items.
        max_items: Maximum number of cached items; the least recently used item is
            evicted first. None caches all items.

    Raises:
        ValueError: `max_items` is less than 1.

    Example:
        >>> dataset = CachedDataset([[1], [2]])
        >>> dataset[0] is dataset[0]
        True
    """

    def __init__(self, dataset: Dataset[T], max_items: int | None = None) -> None:
        if max_items is not None:
            max_items = as_integer("max_items", max_items, 1)
        self._dataset, self._max_items = dataset, max_items
        self._cached = lru_cache(max_items)(dataset.__getitem__)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self._max_items)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> T:
        return self._cached(check_index(index, len(self._dataset)))
