"""The fluent form of the lazy datasets: `dataset.map(f).shuffle(seed).take(n)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from roxxel_loader._arguments import check_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._cached import CachedDataset
    from ._concat import ConcatDataset
    from ._dataset import Dataset
    from ._filtered import FilteredDataset
    from ._mapped import MappedDataset
    from ._sampled import SampledDataset
    from ._shuffled import ShuffledDataset
    from ._sliced import SlicedDataset
    from ._zipped import ZipDataset

T = TypeVar("T")
U = TypeVar("U")


class LazyDataset(ABC, Generic[T]):
    """The interface of this package's datasets: a `Dataset` with methods to chain."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def __getitem__(self, index: int, /) -> T:
        """Return the item at `index`, `0 <= index < len(self)`."""

    def __iter__(self) -> Iterator[T]:
        for index in range(len(self)):
            yield self[index]

    # Each of the datasets below imports this module, so it is imported when called for.

    def map(self, function: Callable[[T], U]) -> MappedDataset[T, U]:
        """Return the items after `function`, called when an item is asked for."""
        from ._mapped import MappedDataset

        return MappedDataset(self, function)

    def filter(self, predicate: Callable[[T], bool]) -> FilteredDataset[T]:
        """Return the items that `predicate` holds for; see `FilteredDataset`."""
        from ._filtered import FilteredDataset

        return FilteredDataset(self, predicate)

    def shuffle(self, seed: int = 0) -> ShuffledDataset[T]:
        """Return the items in an order that depends on `seed`."""
        from ._shuffled import ShuffledDataset

        return ShuffledDataset(self, seed)

    def slice(
        self, start: int, stop: int | None = None, step: int = 1
    ) -> SlicedDataset[T]:
        """Return the items `start`, `start + step`, and so on below `stop`."""
        from ._sliced import SlicedDataset

        return SlicedDataset(self, start, stop, step)

    def take(self, num_items: int) -> SlicedDataset[T]:
        """Return the first `num_items` items, or all where there are fewer.

        Raises:
            ValueError: The number is negative.
            TypeError: It is no integer.
        """
        check_at_least(0, num_items=num_items)
        return self.slice(0, num_items)

    def skip(self, num_items: int) -> SlicedDataset[T]:
        """Return the items after the first `num_items`.

        Raises:
            ValueError: The number is negative.
            TypeError: It is no integer.
        """
        check_at_least(0, num_items=num_items)
        return self.slice(num_items)

    def sample(self, num_items: int, seed: int = 0) -> SampledDataset[T]:
        """Return `num_items` distinct items, chosen by `seed`."""
        from ._sampled import SampledDataset

        return SampledDataset(self, num_items, seed)

    def concat(self, *others: Dataset[T]) -> ConcatDataset[T]:
        """Return these items, then those of the others."""
        from ._concat import ConcatDataset

        return ConcatDataset(self, *others)

    def zip(self, *others: Dataset[Any]) -> ZipDataset:
        """Return tuples of an item of each dataset."""
        from ._zipped import ZipDataset

        return ZipDataset(self, *others)

    def cache(self, max_items: int | None = None) -> CachedDataset[T]:
        """Return the same items, each kept after it was made once."""
        from ._cached import CachedDataset

        return CachedDataset(self, max_items)
