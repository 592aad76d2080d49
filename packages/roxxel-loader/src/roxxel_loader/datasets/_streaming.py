"""Datasets that are read in order, without an index or a known length."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from roxxel_curriculum import make_key, permute
from roxxel_store.arguments import as_integer

from roxxel_loader._arguments import check_callable, seed_number

from ._dataset import call_for_item

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from roxxel_loader._arguments import Seed

    Opener = Callable[[int, int], Iterator[Any]]

T = TypeVar("T")
U = TypeVar("U")


class StreamingDataset(Generic[T]):
    """The items of an iterable of unknown length that can be read again.

    `factory` must return the same items in the same order each time, so that batches
    are as reproducible as those of an indexed dataset. Every process reads the whole
    stream, but keeps only the items of its own rows; see `map` and `filter`.

    Args:
        factory: Function without arguments, called for each pass; returns all items.
        seek: Function that takes an index and returns the items from this index on. If
            given, it is called instead of `factory`, so resuming reads no earlier item.

    Example:
        >>> list(StreamingDataset(lambda: range(9)).filter(lambda n: n % 2).take(3))
        [1, 3, 5]
    """

    def __init__(
        self,
        factory: Callable[[], Iterable[T]],
        seek: Callable[[int], Iterable[T]] | None = None,
    ) -> None:
        check_callable(factory=factory)
        if seek is not None:
            check_callable(seek=seek)

        def open_at(start: int, epoch: int) -> Iterator[T]:
            del epoch
            if seek is not None:
                return iter(seek(start))
            return islice(iter(factory()), start, None)

        self._open: Opener = open_at
        self._function: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[T]:
        return self.items()

    def items(self, start: int = 0, epoch: int = 0) -> Iterator[T]:
        """Yield the items of one epoch, from item `start` on."""
        for position, item in zip(count(start), self._open(start, epoch), strict=False):
            yield self.finish(item, position)

    def unfinished(self, start: int, epoch: int) -> Iterator[Any]:
        """Yield the unmapped items of one epoch, from item `start` on."""
        return self._open(start, epoch)

    def finish(self, item: Any, position: int) -> T:
        """Return the mapped item; add a note that names the item to an error."""
        if self._function is None:
            return item
        return call_for_item(self._function, item, position)

    def map(self, function: Callable[[T], U]) -> StreamingDataset[U]:
        """Return the results of `function` for each item.

        A process calls `function` only for the items of its own rows, unless a filter
        follows; then it calls `function` for all items.
        """
        check_callable(function=function)
        inner = self._function
        if inner is None:
            return self._with(self._open, function)
        return self._with(self._open, lambda item: function(inner(item)))

    def filter(self, predicate: Callable[[T], bool]) -> StreamingDataset[T]:
        """Return the items for which `predicate` is true.

        Every process calls `predicate` for all items, not only for its own rows.
        """
        check_callable(predicate=predicate)

        def open_at(start: int, epoch: int) -> Iterator[T]:
            kept = (item for item in self.items(0, epoch) if predicate(item))
            return islice(kept, start, None)

        return self._with(open_at, None)

    def shuffle(self, buffer_size: int, seed: Seed = 0) -> StreamingDataset[T]:
        """Return the items, shuffled within blocks of `buffer_size` items.

        Each epoch has another order. `seed` is an integer or a key of `jax.random`,
        which is converted to the integer of its bits. Resuming re-reads at most one
        block; a sliding buffer would have to be refilled from the start of the epoch.

        Raises:
            ValueError: `buffer_size` is less than 1.
            TypeError: `buffer_size` is not an integer, or `seed` is neither an integer
                nor a key.
        """
        block_size = as_integer("buffer_size", buffer_size, 1)
        number = seed_number(seed)

        def open_at(start: int, epoch: int) -> Iterator[Any]:
            first, skipped = divmod(start, block_size)
            inner = self._open(first * block_size, epoch)
            for block in count(first):
                items = list(islice(inner, block_size))
                if not items:
                    return
                key = make_key("stream", number, epoch, block)
                order = permute(np.arange(len(items)), len(items), key)
                for position in order[skipped:].tolist():
                    yield items[position]
                skipped = 0

        return self._with(open_at, self._function)

    def take(self, num_items: int) -> StreamingDataset[T]:
        """Return the first `num_items` items, or all if there are fewer.

        Raises:
            ValueError: `num_items` is negative.
            TypeError: `num_items` is not an integer.
        """
        num_taken = as_integer("num_items", num_items, 0)

        def open_at(start: int, epoch: int) -> Iterator[Any]:
            return islice(self._open(start, epoch), max(num_taken - start, 0))

        return self._with(open_at, self._function)

    def skip(self, num_items: int) -> StreamingDataset[T]:
        """Return all items except the first `num_items`.

        Raises:
            ValueError: `num_items` is negative.
            TypeError: `num_items` is not an integer.
        """
        num_skipped = as_integer("num_items", num_items, 0)

        def open_at(start: int, epoch: int) -> Iterator[Any]:
            return self._open(start + num_skipped, epoch)

        return self._with(open_at, self._function)

    def _with(
        self, open_at: Opener, function: Callable[[Any], Any] | None
    ) -> StreamingDataset[Any]:
        other = cast("StreamingDataset[Any]", object.__new__(StreamingDataset))
        vars(other).update(_open=open_at, _function=function)
        return other
