"""Items that come one after the other, as many as there are."""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from roxxel_curriculum import make_key, permute

from roxxel_loader._arguments import check_at_least, check_callable

from ._dataset import add_item_note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Opener = Callable[[int, int], Iterator[Any]]

T = TypeVar("T")
U = TypeVar("U")


class StreamingDataset(Generic[T]):
    """The items of an iterator that can be started again, of unknown number.

    The factory must give the same items in the same order each time; then batches of
    the stream are as reproducible as those of an indexed dataset. Every process goes
    through the whole stream, but maps and keeps only the items of its own rows.

    Args:
        factory: Called for each pass; gives the items from the first on.
        seek: Called with a number instead, where given; gives the items from that one
            on, so that resuming does not have to go through those before.
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
        """Yield the items from `start` on, as the pass `epoch` has them."""
        for position, item in zip(count(start), self._open(start, epoch), strict=False):
            yield self.finish(item, position)

    def unfinished(self, start: int, epoch: int) -> Iterator[Any]:
        """Yield what `finish` makes items of; cheap where items are then dropped."""
        return self._open(start, epoch)

    def finish(self, item: Any, position: int) -> T:
        """Return an item, mapped; an error says in a note which one it met."""
        if self._function is None:
            return item
        try:
            return self._function(item)
        except Exception as error:
            add_item_note(error, position)
            raise

    def map(self, function: Callable[[T], U]) -> StreamingDataset[U]:
        """Return the items after `function`, called for the items a process keeps."""
        check_callable(function=function)
        inner = self._function
        if inner is None:
            return self._with(self._open, function)
        return self._with(self._open, lambda item: function(inner(item)))

    def filter(self, predicate: Callable[[T], bool]) -> StreamingDataset[T]:
        """Return the items that `predicate` holds for; called for all, everywhere."""
        check_callable(predicate=predicate)

        def open_at(start: int, epoch: int) -> Iterator[T]:
            kept = (item for item in self.items(0, epoch) if predicate(item))
            return islice(kept, start, None)

        return self._with(open_at, None)

    def shuffle(self, buffer_size: int, seed: int = 0) -> StreamingDataset[T]:
        """Return the items shuffled inside blocks of `buffer_size`, anew in each epoch.

        Blocks instead of a sliding buffer, so that resuming has to read at most one.

        Raises:
            ValueError: The buffer holds no item.
        """
        check_at_least(1, buffer_size=buffer_size)

        def open_at(start: int, epoch: int) -> Iterator[Any]:
            first, skipped = divmod(start, buffer_size)
            inner = self._open(first * buffer_size, epoch)
            for block in count(first):
                items = list(islice(inner, buffer_size))
                if not items:
                    return
                key = make_key("stream", seed, epoch, block)
                order = permute(np.arange(len(items)), len(items), key)
                for position in order[skipped:].tolist():
                    yield items[position]
                skipped = 0

        return self._with(open_at, self._function)

    def take(self, num_items: int) -> StreamingDataset[T]:
        """Return the first `num_items` items, or all where there are fewer.

        Raises:
            ValueError: The number is negative.
            TypeError: It is no integer.
        """
        check_at_least(0, num_items=num_items)

        def open_at(start: int, epoch: int) -> Iterator[Any]:
            return islice(self._open(start, epoch), max(num_items - start, 0))

        return self._with(open_at, self._function)

    def skip(self, num_items: int) -> StreamingDataset[T]:
        """Return the items after the first `num_items`.

        Raises:
            ValueError: The number is negative.
            TypeError: It is no integer.
        """
        check_at_least(0, num_items=num_items)

        def open_at(start: int, epoch: int) -> Iterator[Any]:
            return self._open(start + num_items, epoch)

        return self._with(open_at, self._function)

    def _with(
        self, open_at: Opener, function: Callable[[Any], Any] | None
    ) -> StreamingDataset[Any]:
        other = cast("StreamingDataset[Any]", object.__new__(StreamingDataset))
        vars(other).update(_open=open_at, _function=function)
        return other
