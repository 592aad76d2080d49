"""Find documents by the separators at their ends.

Flat files, and shards of the first Roxxel, an older library of this name, do not record
where documents end. A document may be in several files, so the files are read as one
`Line`.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._read.foreign_files import BlockFile
    from roxxel_format._read.line import Line
    from roxxel_format._spec.dtypes import Tokens

_SEARCHED_ITEMS = 1 << 22


class DocumentEnds(NamedTuple):
    """Where documents end and the next begin, in the tokens of all shards in order.

    `stops` ascend; the last equals the number of tokens. `separators` are the numbers
    of separator tokens at the end of each document: an array of the same shape, or 0
    for all.

    Example:
        >>> DocumentEnds(np.array([3, 5])).stops.tolist()
        [3, 5]
    """

    stops: npt.NDArray[np.int64]
    separators: npt.NDArray[np.int64] | int = 0


def items_of(separator: float | bytes, dtype: np.dtype[Any]) -> Tokens:
    if isinstance(separator, bytes):
        if not separator or len(separator) % dtype.itemsize:
            raise ValueError(
                f"separator has {len(separator)} bytes, but an item of {dtype} has "
                f"{dtype.itemsize}; such a separator misaligned all later items, so "
                "write this corpus again from its texts"
            )
        return np.frombuffer(separator, dtype)
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        items = np.array([separator]).astype(dtype)
        if items[0] == separator:
            return items
    raise ValueError(
        f"separator={separator!r} is not a value of {dtype}; pass a token or its bytes"
    )


def ended(line: Line[Any], token: Tokens) -> DocumentEnds:
    """Find the documents of a line, each of which ends with one token.

    The last document may lack the token.
    """
    found: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(line), _SEARCHED_ITEMS):
        items = line.range(start, min(start + _SEARCHED_ITEMS, len(line)))
        found.append(np.flatnonzero(items == token[0]) + (start + 1))
    stops = np.concatenate([np.empty(0, np.int64), *found])
    if (int(stops[-1]) if stops.size else 0) == len(line) and stops.size:
        return DocumentEnds(stops, 1)
    lengths = np.ones(stops.size + 1, np.int64)
    lengths[-1] = 0
    return DocumentEnds(np.append(stops, len(line)), lengths)


def with_separator(
    line: Line[Any], stops: npt.NDArray[np.int64], token: Tokens
) -> DocumentEnds:
    """Say which documents of known ends have the token as their last."""
    starts = np.append(0, stops[:-1])
    lengths = np.zeros(stops.size, np.int64)
    filled = np.flatnonzero(stops > starts)
    for at in range(0, filled.size, _SEARCHED_ITEMS):
        rows = filled[at : at + _SEARCHED_ITEMS]
        last = line.read((stops[rows] - 1).tolist(), 1, line.dtype)[:, 0]
        lengths[rows] = last == token[0]
    return DocumentEnds(stops, 1 if lengths.all() else lengths)


def separated(line: Line[BlockFile], bounds: list[int], end: Tokens) -> DocumentEnds:
    """Find the documents of a line by their separator, `end`.

    `bounds` are the bounds of the shards in the line.
    """
    size, stop = end.size, len(line)
    found_begins: list[int] = []  # Where separators, or runs of them, begin.
    found_stops: list[int] = []
    for start in range(0, stop, _SEARCHED_ITEMS):
        items = line.range(start, min(start + _SEARCHED_ITEMS + size - 1, stop))
        is_found = np.ones(max(0, items.size - size + 1), np.bool_)
        for at, item in enumerate(end):
            is_found &= items[at : at + is_found.size] == item
        for begin in (np.flatnonzero(is_found) + start).tolist():
            if found_stops and begin < found_stops[-1]:  # Overlaps the last one.
                continue
            if found_stops and begin == found_stops[-1]:
                found_stops[-1] += size
            else:
                found_begins.append(begin)
                found_stops.append(begin + size)
    begins, stops = np.array(found_begins, np.int64), np.array(found_stops, np.int64)
    begins, stops = _with_padding(line, bounds, end, begins, stops)
    if (stops[-1] if stops.size else 0) < stop:  # A document without a separator.
        begins, stops = np.append(begins, stop), np.append(stops, stop)
    return DocumentEnds(stops, stops - begins)


def _with_padding(
    line: Line[BlockFile],
    bounds: list[int],
    end: Tokens,
    begins: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Add each incomplete separator at the end of a block to the run before it.

    The first Roxxel padded the last block of each write with separators, of which the
    last may be incomplete. The next write begins with a new block, in the same shard or
    another. But the last items of a block may also begin a document and only look like
    a separator. So within a shard, they count as padding only after two separators:
    that of the document, and the first of the padding.
    """
    if end.size == 1 or not stops.size:
        return begins, stops
    for number, (first, last) in enumerate(pairwise(bounds)):
        low, high = np.searchsorted(stops, (first, last)).tolist()
        if low == high:
            continue
        ends = line.file(number).block_ends + first
        next_ends = ends[np.searchsorted(ends, stops[low:high], "right")]
        is_near = next_ends - stops[low:high] < end.size
        for row in (np.flatnonzero(is_near) + low).tolist():
            start, stop = int(stops[row]), int(next_ends[row - low])
            if row + 1 < stops.size and begins[row + 1] < stop:
                continue
            if stop < last and start - begins[row] < 2 * end.size:
                continue
            if np.array_equal(line.range(start, stop), end[: stop - start]):
                stops[row] = stop
    # Join runs that now touch: an empty document after the padding is a run of
    # separators that begins where the padding ends.
    is_apart = begins[1:] != stops[:-1]
    return begins[np.append(1, is_apart) > 0], stops[np.append(is_apart, 1) > 0]
