"""Find the documents of many windows at once, from the ends of all documents.

A batch needs the documents of all its rows. One call for all rows of a shard costs
little more than one for a single row
(`tests-integration/benchmarks/curriculum_batch.py` prints segments beside tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    _Integers = npt.NDArray[np.int64]


class Found(NamedTuple):
    """The documents that have tokens in some windows, one window after another.

    `last[i]` is the place of the last document of window i in the other arrays.
    """

    last: _Integers
    window: _Integers
    document: _Integers
    end: _Integers


def find_ends(ends: _Integers, starts: _Integers, stops: _Integers) -> Found:
    """Find the documents of the windows `[starts[i], stops[i])`, which are not empty.

    `ends` are the ends of all documents.
    """
    # Limits, because the bytes of a map may be damaged; the caller may verify them.
    most = ends.size - 1
    first = np.minimum(ends.searchsorted(starts, "right"), most)
    last = np.minimum(ends.searchsorted(stops, "left"), most)
    counts = np.maximum(last - first, 0) + 1
    window, document = ranges(first, counts)
    return Found(counts.cumsum() - 1, window, document, ends[document])


def ranges(firsts: _Integers, counts: _Integers) -> tuple[_Integers, _Integers]:
    """Return i for each number in `[firsts[i], firsts[i] + counts[i])`, and these."""
    stops = counts.cumsum()
    numbers = (firsts - stops + counts).repeat(counts)
    numbers += np.arange(numbers.size)
    return np.arange(counts.size).repeat(counts), numbers


def span_rows(found: Found, starts: _Integers, stops: _Integers) -> _Integers:
    """Return rows `(window, document, start, stop)`, clipped to the windows.

    `found` has the documents of the windows `[starts[i], stops[i])`. The shape is
    `(n, 4)`. A document without tokens has an empty row.
    """
    rows = np.empty((found.end.size, 4), np.int64)
    rows[:, 0] = found.window
    rows[:, 1] = found.document
    rows[:, 3] = found.end
    rows[found.last, 3] = stops
    rows[1:, 2] = rows[:-1, 3]
    rows[0, 2] = starts[0]
    if starts.size > 1:
        rows[found.last[:-1] + 1, 2] = starts[1:]
    return rows


def bin_rows(
    found: Found,
    following: _Integers,
    starts: _Integers,
    stops: _Integers,
    unit: int,
) -> _Integers:
    """Return `span_rows` of a packed shard, with the document -1 for padding.

    `following` has the end after those of each window, or -1 at the end of the shard.
    All numbers count in the shard.
    """
    rows = span_rows(found, starts, stops)
    after = np.append(found.end[1:], -1)
    after[found.last] = following
    # Before a document, each whole bin has one padding.
    rows[:, 1] -= rows[:, 2] // unit
    rows[is_padding(found.end, after, unit), 1] = -1
    return rows


def is_padding(
    ends: _Integers, following: _Integers, unit: int
) -> npt.NDArray[np.bool_]:
    """Return which ends of documents are those of paddings: the last ends of the bins.

    `following` is the end after each of `ends`, or -1 at the end of the shard.
    """
    return (ends % unit == 0) & (following != ends)
