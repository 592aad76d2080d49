"""One line of items in several pieces, such as the tokens of many shards.

This is the only route from windows to bytes. Each window is one row of a sliding view
of its piece, and one casting `numpy.concatenate` copies all rows into the batch. A
check of a file's size counts for 10 ms, so the views of one length are kept for 10 ms.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_format._spec.dtypes import Tokens

_SIZE_CHECK_S = 0.01


class Windows(Protocol):
    """All windows of one length of a piece, by their first item."""

    def __getitem__(self, start: int, /) -> Tokens:
        """Return a window.

        Raises:
            IndexError: The window leaves the piece.
        """
        ...


class Piece(Protocol):
    """Consecutive items of a line."""

    def span(self, start: int, stop: int) -> Tokens:
        """Return the items `[start, stop)`, read-only."""
        ...

    def windows(self, length: int) -> Windows:
        """Return all windows of `length` items, at least 1."""
        ...


class ArrayPiece:
    """A piece that is one array.

    Args:
        items: Shape `(n,)`, contiguous.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Tokens) -> None:
        self._items = items

    def span(self, start: int, stop: int) -> Tokens:
        """Return the items `[start, stop)`: a view."""
        return self._items[start:stop]

    def windows(self, length: int) -> Windows:
        """Return all windows: overlapping rows of one view."""
        items = self._items
        shape = max(0, items.size - length + 1), length
        strides = items.itemsize, items.itemsize
        # `sliding_window_view` takes 13 us for the same view and this 0.4 us; a batch
        # from many shards needs a view of each.
        return np.ndarray(shape, items.dtype, items, 0, strides)


class _KeptWindows(NamedTuple):
    """Windows of one length, by piece; until `until`, file sizes count as checked."""

    length: int
    until: float
    by_piece: dict[int, Windows]


class Line:
    """Items in pieces, read as one line. Safe to use from many threads.

    Args:
        bounds: First item of each piece, then the number of items.
        dtype: Type of an item.
        piece: Returns a piece by its number, after checking the size of its file.
        max_pieces: Returns how many pieces may be held at a time.
    """

    __slots__ = ("_bounds", "_kept", "_max_pieces", "_piece", "dtype")

    def __init__(
        self,
        bounds: Sequence[int],
        dtype: np.dtype[Any],
        piece: Callable[[int], Piece],
        max_pieces: Callable[[], int],
    ) -> None:
        self.dtype = dtype
        self._bounds = bounds
        self._piece = piece
        self._max_pieces = max_pieces
        self._kept = _KeptWindows(0, 0.0, {})

    def __len__(self) -> int:
        return self._bounds[-1]

    def read(
        self,
        starts: list[int],
        length: int,
        dtype: np.dtype[Any],
        out: Tokens | None = None,
        check: Callable[[Tokens], None] | None = None,
    ) -> Tokens:
        """Return the windows of `length` items that begin at `starts`.

        Args:
            starts: First item of each window, inside the line; n of them.
            length: Items of each window.
            dtype: Type of the result.
            out: Shape `(n, length)`, of that type; filled and returned.
            check: Called with the windows as stored, before they are cast.

        Returns:
            Shape `(n, length)`.
        """
        shape = len(starts), length
        if check is None and (out is None or out.flags.c_contiguous):
            rows = np.empty(shape, dtype) if out is None else out
            self._fill(starts, length, np.asarray(rows).reshape(-1))
            return rows
        rows = np.empty(shape, self.dtype)
        self._fill(starts, length, rows.reshape(-1))
        if check is not None:
            check(rows)
        if out is None:
            return rows.astype(dtype, copy=False)
        out[...] = rows
        return out

    def range(self, start: int, stop: int) -> Tokens:
        """Return the items `[start, stop)`: a view in one piece, else a copy."""
        if start == stop:
            return np.empty(0, self.dtype)
        number = bisect_right(self._bounds, start) - 1
        first = self._bounds[number]
        if stop <= self._bounds[number + 1]:
            return self._piece(number).span(start - first, stop - first)
        # Open every piece, which compares its file with the manifest, before allocating
        # memory for all items. Dropping each piece keeps one map open at a time.
        last = bisect_right(self._bounds, stop - 1)
        for each in range(number, last):
            self._piece(each)
        items = np.empty(stop - start, self.dtype)
        at = start
        while at < stop:
            first, until = self._bounds[number], min(stop, self._bounds[number + 1])
            if at < until:
                part = self._piece(number).span(at - first, until - first)
                items[at - start : until - start] = part
            at, number = until, number + 1
        return items

    def forget(self) -> None:
        """Drop the kept views, and with them the maps that they keep open."""
        self._kept = _KeptWindows(0, 0.0, {})

    def _fill(self, starts: list[int], length: int, flat: Tokens) -> None:
        if not flat.size:
            return
        bounds = self._bounds
        # Rows keep the maps of their shards open, so a batch from more shards than may
        # be open is filled in several turns.
        num_pieces = len(bounds) - 1
        most = max(1, self._max_pieces()) if num_pieces > 1 else 1
        turn = most if most < num_pieces else len(starts)
        for first in range(0, len(starts), turn):
            kept = self._kept_windows(length, min(most, num_pieces))
            parts: list[Tokens] = []
            for start in starts[first : first + turn]:
                number = bisect_right(bounds, start) - 1
                windows = kept.get(number)
                if windows is None:
                    windows = kept[number] = self._piece(number).windows(length)
                try:
                    parts.append(windows[start - bounds[number]])
                except IndexError:
                    parts.append(self.range(start, start + length))
            target = flat[first * length : (first + len(parts)) * length]
            np.concatenate(parts, out=target, casting="unsafe")

    def _kept_windows(self, length: int, most: int) -> dict[int, Windows]:
        now = time.monotonic()
        kept = self._kept
        # Replaced, not changed: other threads may still use the old views.
        is_full = len(kept.by_piece) > most
        if kept.length != length or now > kept.until or is_full:
            kept = self._kept = _KeptWindows(length, now + _SIZE_CHECK_S, {})
        return kept.by_piece
