"""Read the items of several files as one sequence, such as the tokens of shards.

All reads of windows use this module. A piece is the items of one file. A window inside
a piece is a slice. A window across pieces is copied first. Then all windows are cast
and copied into the batch, once. For windows inside pieces, a line checks a file's size
at most once in 10 ms, and keeps its pieces for this time.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from functools import cache
from operator import index as as_index
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    SupportsIndex,
    TypeVar,
    cast,
)

import numpy as np

from roxxel_format._read.files import MapCache, max_maps, register
from roxxel_format._spec.layout import integer_range, stored_dtype, value_range

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Sequence

    import numpy.typing as npt

    from roxxel_format._read.files import Piece
    from roxxel_format._spec.layout import Tokens

_SIZE_CHECK_S = 0.01

_T = TypeVar("_T")


class _KeptPieces(NamedTuple):
    """Pieces by number. Until `until`, their files need no new size check."""

    until: float
    pieces: dict[int, Piece]


class Line(Generic[_T]):
    """The items of several files, as one sequence. Safe to use from many threads.

    `bounds[i]` is the index of the first item of file i; the last entry is the number
    of all items. `open_file` opens a file by its number. `piece` checks the size of an
    open file and returns its items. `is_mapped` says whether a file needs descriptors.
    Such files stay open up to a fair share of the process's descriptors. `copies` are
    the numbers of the bucket files that have copies so far.
    """

    def __init__(
        self,
        bounds: Sequence[int],
        dtype: np.dtype[Any],
        open_file: Callable[[int], _T],
        piece: Callable[[_T], Piece],
        is_mapped: Callable[[_T], bool] = lambda _: True,
        copies: Container[int] = (),
    ) -> None:
        self.dtype = dtype
        self._bounds = bounds
        self._piece = piece
        self._files = MapCache(open_file, is_mapped, copies)
        self._kept = _KeptPieces(0.0, {})
        register(self.release)

    def __len__(self) -> int:
        return self._bounds[-1]

    def read(
        self,
        starts: list[int],
        length: int,
        dtype: np.dtype[Any],
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` items that begin at `starts`.

        `out` has shape `(n, length)`; the line fills and returns it. See `fill`.
        """
        rows = np.empty((len(starts), length), dtype) if out is None else out
        self.fill(starts, rows)
        return rows

    def fill(
        self,
        starts: list[int],
        out: Tokens,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Fill `rows` of `out` with the windows that begin at `starts`; None fills all.

        Windows must be inside the line, and be as long as the rows of `out`.
        """
        if rows is not None and len(rows) != len(starts):
            raise ValueError(
                f"{len(rows)} rows are given for {len(starts)} windows; give one each"
            )
        if rows is None and not out.flags.c_contiguous:
            rows = range(len(starts))
        self._gather(starts, out, rows)

    def range(self, start: int, stop: int) -> Tokens:
        """Return the items `[start, stop)`: a view of one piece, or a copy."""
        if start == stop:
            return np.empty(0, self.dtype)
        parts = list(self.parts(start, stop))
        if len(parts) == 1:
            ((number, first, last),) = parts
            return self._piece(self.file(number))[first:last]
        # Open all files, which checks them, before allocating memory for the items.
        # Keep no piece, so that only one map is open at a time.
        for number, _, _ in parts:
            self.file(number)
        items = np.empty(stop - start, self.dtype)
        at = 0
        for number, first, last in parts:
            items[at : at + last - first] = self._piece(self.file(number))[first:last]
            at += last - first
        return items

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield `(number, start, stop)` for each file that holds items of the range.

        `start` and `stop` count items from the first item of the file.
        """
        number = bisect_right(self._bounds, start) - 1
        while start < stop:
            first, until = self._bounds[number], min(stop, self._bounds[number + 1])
            if start < until:
                yield number, start - first, until - first
            start, number = until, number + 1

    def file(self, number: int) -> _T:
        """Return file `number`; open the file if it is closed."""
        return self._files[number]

    def is_open(self, number: int) -> bool:
        """Return whether a file is open."""
        return number in self._files

    def release(self) -> None:
        """Release all maps; the next read opens the files again."""
        self._kept = _KeptPieces(0.0, {})  # Pieces keep their maps open.
        self._files.clear()

    def _gather(
        self, starts: list[int], out: Tokens, rows: Sequence[int] | None
    ) -> None:
        length = out.shape[1]
        if not starts or not length:
            return
        bounds = self._bounds
        # Slices keep the maps of their files open. If a batch needs more files than may
        # be open, each call fills a part of the rows.
        num_pieces = len(bounds) - 1
        most = max_maps() if num_pieces > 1 else 1
        if most < num_pieces and most < len(starts):
            every = range(len(starts)) if rows is None else rows
            for first in range(0, len(starts), most):
                at = slice(first, first + most)
                self._gather(starts[at], out, every[at])
            return
        kept = self._kept_pieces(most)
        parts: list[Tokens] = []
        for start in starts:
            number = bisect_right(bounds, start) - 1
            if start + length > bounds[number + 1]:
                parts.append(self.range(start, start + length))
                continue
            piece = kept.get(number)
            if piece is None:
                piece = kept[number] = self._piece(self.file(number))
            at = start - bounds[number]
            parts.append(piece[at : at + length])
        if rows is None:
            np.concatenate(parts, out=out.reshape(-1), casting="unsafe")
        else:  # A `zip` of both costs as much as two copies of a short window.
            for at, part in enumerate(parts):
                out[rows[at]] = part

    def _kept_pieces(self, most: int) -> dict[int, Piece]:
        now = time.monotonic()
        kept = self._kept
        # Replace the dict and do not clear it: other threads may still use it.
        if now > kept.until or len(kept.pieces) > most:
            kept = self._kept = _KeptPieces(now + _SIZE_CHECK_S, {})
        return kept.pieces


def parse_windows(
    starts: npt.ArrayLike, length: int, num_tokens: int
) -> tuple[list[int], int]:
    """Return starts and length; raise IndexError if a window leaves the corpus."""
    length = as_index(length)
    array = np.asarray(starts)
    if array.ndim != 1:
        raise ValueError(
            f"starts has shape {array.shape}; pass a flat array: the index of the "
            "first token of each window"
        )
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"starts has dtype {array.dtype}; pass integers")
    if length < 0:
        raise ValueError(f"length must not be negative, got {length}")
    begins: list[int] = array.tolist()
    last = num_tokens - length
    for start in begins:
        if not 0 <= start <= last:
            raise IndexError(
                f"window [{start}, {start + length}) leaves the corpus of "
                f"{num_tokens} tokens"
            )
    return begins, length


def result_dtype(
    shape: tuple[int, int],
    dtype: npt.DTypeLike | None,
    out: Tokens | None,
    stored: np.dtype[Any],
) -> np.dtype[Any]:
    """Check `out`; return `dtype`, else the dtype of `out`, else `stored`."""
    if out is None:
        return stored if dtype is None else np.dtype(dtype)
    if not isinstance(cast("object", out), np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}; pass a numpy array")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}; these windows need {shape}")
    if dtype is not None and np.dtype(dtype) != out.dtype:
        raise ValueError(f"out has dtype {out.dtype}, but dtype={dtype}")
    return out.dtype


def check_readable_as(
    stored: str, values: tuple[int, int] | None, dtype: np.dtype[Any]
) -> None:
    """Raise TypeError if `dtype` cannot hold the values; floats may be rounded.

    `values` are the least and greatest stored integer; None for floats.
    """
    if holds_all(stored, dtype):
        return
    if values is None:
        # Without ml_dtypes, bfloat16 items are raw bits in uint16, not numbers.
        source = stored_dtype(stored)
        fits = source.kind != "u" and dtype.kind in "fV" and _is_number(dtype)
        fits = fits and np.can_cast(source, dtype, "same_kind")
    else:
        limits = _exact_range(dtype)
        fits = limits is not None and limits[0] <= values[0] and values[1] <= limits[1]
    if not fits:
        of = f" of values {values[0]} to {values[1]}" if values else ""
        raise TypeError(
            f"{stored} tokens{of} cannot be read as {dtype}; read them as a wider dtype"
        )


def holds_all(stored: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds every value of the item type `stored`."""
    source = stored_dtype(stored)
    values, limits = value_range(stored), _exact_range(dtype)
    if source == dtype:
        return True
    if values is None or limits is None:
        # Known ranges are compared below, because numpy calls int64 to float64 "safe".
        return _is_number(dtype) and np.can_cast(source, dtype, "safe")
    return limits[0] <= values[0] and values[1] <= limits[1]


@cache
def _exact_range(dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """Return the widest range of integers that a dtype represents without rounding.

    None for bool, for dtypes that are not numeric, and for dtypes of ml_dtypes.
    """
    if dtype.kind in "fc":
        exact = 2 ** (np.finfo(dtype).nmant + 1)
        return -exact, exact
    return integer_range(dtype)


def _is_number(dtype: np.dtype[Any]) -> bool:
    # Dtypes of ml_dtypes have kind V, like raw bytes and structured dtypes.
    return dtype.kind in "iufcV" and dtype.type is not np.void


def check_range(start: int, stop: int, num_tokens: int) -> None:
    """Raise IndexError unless `[start, stop)` lies inside the corpus."""
    if not 0 <= start <= stop <= num_tokens:
        raise IndexError(
            f"range [{start}, {stop}) leaves the corpus of {num_tokens} tokens"
        )


def parse_index(index: SupportsIndex, length: int, what: str) -> int:
    """Return an index that counts from the start; raise IndexError if out of range."""
    number = as_index(index)
    if not -length <= number < length:
        raise IndexError(f"{what} {number} is out of range; there are {length}")
    return number % length


def each_at(
    key: SupportsIndex | slice, length: int, item: Callable[[int], Tokens], what: str
) -> Tokens | list[Tokens]:
    """Return the item at an index, or a list of the items of a slice."""
    if isinstance(key, slice):
        return [item(number) for number in range(*key.indices(length))]
    return item(parse_index(key, length, what))


def items_at(
    key: SupportsIndex | slice,
    length: int,
    read: Callable[[int, int], Tokens],
    what: str,
) -> Any:
    """Return the items at `key` in a list of `length` items; errors name `what`."""
    if not isinstance(key, slice):
        number = parse_index(key, length, what)
        return read(number, number + 1)[0]
    start, stop, step = key.indices(length)
    if step == 1:
        return read(start, max(start, stop))
    span = range(start, stop, step)
    if not span:
        return read(0, 0)
    return read(min(span[0], span[-1]), max(span[0], span[-1]) + 1)[::step]
