"""Find documents by the separators at their ends.

Flat files do not record where documents end. A document may be in several files, so the
files are read as one `Line`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._read.line import Line
    from roxxel_format._spec.layout import Tokens

_SEARCHED_ITEMS = 1 << 22


class DocumentEnds(NamedTuple):
    """Where documents end, in the tokens of all shards in order.

    `stops` ascend; the last equals the number of tokens. `separators` are the numbers
    of separator tokens at the end of each document: an array of the same shape, or 0
    for all.

    Example:
        >>> DocumentEnds(np.array([3, 5])).stops.tolist()
        [3, 5]
    """

    stops: npt.NDArray[np.int64]
    separators: npt.NDArray[np.int64] | int = 0


def items_of(separator: float, dtype: np.dtype[Any]) -> Tokens:
    """Return a separator as an array of one item."""
    with contextlib.suppress(OverflowError, TypeError, ValueError):
        items = np.array([separator]).astype(dtype)
        if items[0] == separator:
            return items
    raise ValueError(f"separator={separator!r} is not a value of {dtype}; pass a token")


def ended(line: Line[Any], token: Tokens) -> DocumentEnds:
    """Find the documents of a line by the token that ends each.

    The last document may lack it.
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
    """Mark which documents, of known ends, end with the token."""
    starts = np.append(0, stops[:-1])
    lengths = np.zeros(stops.size, np.int64)
    filled = np.flatnonzero(stops > starts)
    for at in range(0, filled.size, _SEARCHED_ITEMS):
        rows = filled[at : at + _SEARCHED_ITEMS]
        last = line.read((stops[rows] - 1).tolist(), 1, line.dtype)[:, 0]
        lengths[rows] = last == token[0]
    return DocumentEnds(stops, 1 if lengths.all() else lengths)
