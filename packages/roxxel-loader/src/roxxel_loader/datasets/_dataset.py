"""The protocol of datasets: a length and items by index."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

T_co = TypeVar("T_co", covariant=True)

ITEM_NOTE = "while loading "
"""First words of the note that names the items of an error."""


@runtime_checkable
class Dataset(Protocol[T_co]):
    """Items by index: a list is one, and so is anything with these two methods.

    With several workers, several threads read items at once. A dataset that fetches
    many items faster together may also have `__getitems__(indices)`, which returns a
    list of items.
    """

    def __len__(self) -> int:
        """Return the number of items."""
        ...

    def __getitem__(self, index: int, /) -> T_co:
        """Return the item at `index`, `0 <= index < len(self)`."""
        ...


def fetch(dataset: Dataset[Any], indices: Sequence[int]) -> list[Any]:
    """Return the items at `indices`; a note of each error names the item.

    Raises:
        Exception: Whatever the dataset raises.
    """
    many = getattr(dataset, "__getitems__", None)
    if many is not None:
        # Ours take a range as it is, quickly; others may count on a list.
        wanted = indices if isinstance(dataset, LazyDataset) else list(indices)
        try:
            items = list(many(wanted))
        except Exception as error:
            if not names_an_item(error):
                _raise_for_item(dataset, indices, error)
            raise
        if len(items) != len(indices):
            raise ValueError(
                f"{type(dataset).__name__}.__getitems__ gave {len(items)} items for "
                f"{len(indices)} indices from item {indices[0]} on; it must give one "
                "each"
            )
        return items
    items = []
    for index in indices:
        try:
            items.append(dataset[index])
        except Exception as error:
            add_item_note(error, index)
            raise
    return items


def check_index(index: int, size: int) -> int:
    """Return `index` as an int.

    Raises:
        IndexError: `index` is outside `[0, size)`; negative indices do not wrap.
        TypeError: `index` is not an integer.
    """
    try:
        position = operator.index(index)
    except TypeError:
        raise TypeError(
            f"an item is asked for by an integer, not by {index!r}; use "
            ".slice(start, stop) for several"
        ) from None
    if not 0 <= position < size:
        raise IndexError(f"item {position} is outside [0, {size})")
    return position


def add_item_note(error: BaseException, index: int) -> None:
    """Add a note that names the item of an error, unless an inner call did so."""
    if not names_an_item(error):
        error.add_note(f"{ITEM_NOTE}item {index}")


def names_an_item(error: BaseException) -> bool:
    """Return whether an error has a note that names its items."""
    notes: list[str] = getattr(error, "__notes__", [])
    return any(note.startswith(ITEM_NOTE) for note in notes)


def _raise_for_item(
    dataset: Dataset[Any], indices: Sequence[int], error: Exception
) -> None:
    """Raise the error of the single failing index; else add a note of all indices."""
    for index in indices:
        try:
            dataset[index]
        except Exception as single:
            add_item_note(single, index)
            raise single from None
    error.add_note(f"{ITEM_NOTE}items {list(indices)} at once")
