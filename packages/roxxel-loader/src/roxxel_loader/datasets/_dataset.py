"""The protocol `Dataset`, and functions that load items and name them in errors."""

from __future__ import annotations

import operator
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T_co = TypeVar("T_co", covariant=True)

ITEM_NOTE = "while loading "
"""Prefix of the exception notes that name items."""


@runtime_checkable
class Dataset(Protocol[T_co]):
    """Items by index: a list, or any object with `__len__` and `__getitem__`.

    With several workers, several threads load items at the same time. A dataset that
    loads many items faster in one call may also have `__getitems__(indices)`, which
    returns a list of items.

    Example:
        >>> isinstance([1, 2], Dataset), isinstance({1, 2}, Dataset)
        (True, False)
    """

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Return the item at `index`, `0 <= index < len(self)`."""
        ...


def fetch(dataset: Dataset[Any], indices: Sequence[int]) -> list[Any]:
    """Return the items at `indices`; add a note that names the item to each error."""
    many = getattr(dataset, "__getitems__", None)
    if many is not None:
        try:
            items = list(many(list(indices)))
        except Exception as error:
            if not _names_an_item(error):
                _raise_for_item(dataset, indices, error)
            raise
        if len(items) != len(indices):
            raise ValueError(
                f"{type(dataset).__name__}.__getitems__ returned {len(items)} items "
                f"for {len(indices)} indices from item {indices[0]} on; return one "
                "item per index"
            )
        return items
    return [call_for_item(dataset.__getitem__, index, index) for index in indices]


def call_for_item(function: Callable[[Any], Any], argument: Any, index: int) -> Any:
    """Return `function(argument)`; add a note that names the item to an error."""
    try:
        return function(argument)
    except Exception as error:
        _add_item_note(error, index)
        raise


def load_parts(
    stops: Sequence[int],
    indices: Sequence[int],
    load: Callable[[int, list[int]], Sequence[Any]],
) -> list[Any]:
    """Return the items at `indices` of a dataset that consists of consecutive parts.

    Part k ends before index `stops[k]`. `load(k, positions)` returns the items at
    `positions` of part k, counted from the start of the part.
    """
    by_part: dict[int, list[int]] = {}
    for number, index in enumerate(indices):
        by_part.setdefault(bisect_right(stops, index), []).append(number)
    items: list[Any] = [None] * len(indices)
    for part, numbers in by_part.items():
        start = stops[part - 1] if part else 0
        found = load(part, [indices[number] - start for number in numbers])
        for number, item in zip(numbers, found, strict=True):
            items[number] = item
    return items


def as_rows(columns: Any) -> list[dict[str, Any]]:
    """Return one dict per row of `columns`, a mapping of names to columns."""
    rows = zip(*(columns[name] for name in columns), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def check_index(index: int, size: int) -> int:
    """Return `index` as an int in `[0, size)`; a negative index counts from the end."""
    try:
        position = operator.index(index)
    except TypeError:
        raise TypeError(
            f"the index of an item is {index!r}, not an integer; use "
            ".slice(start, stop) for several items"
        ) from None
    if not -size <= position < size:
        raise IndexError(f"item {position} is outside [{-size}, {size})")
    return position % size


def _names_an_item(error: BaseException) -> bool:
    notes: list[str] = getattr(error, "__notes__", [])
    return any(note.startswith(ITEM_NOTE) for note in notes)


def _add_item_note(error: BaseException, index: int) -> None:
    """Add a note that names the item, unless the error already has such a note."""
    if not _names_an_item(error):
        error.add_note(f"{ITEM_NOTE}item {index}")


def _raise_for_item(
    dataset: Dataset[Any], indices: Sequence[int], error: Exception
) -> None:
    """Load the items one by one; raise the first error, or add a note to `error`."""
    for index in indices:
        try:
            dataset[index]
        except Exception as single:
            _add_item_note(single, index)
            raise single from None
    error.add_note(f"{ITEM_NOTE}items {list(indices)} at once")
