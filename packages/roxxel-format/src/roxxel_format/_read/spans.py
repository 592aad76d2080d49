"""Find the documents of many windows at once, from the ends of all documents.

A batch needs the documents of all its rows. One call for all rows of a shard costs
little more than a call for one row (`tests-integration/benchmarks/curriculum_batch.py`
prints the time of segments and of tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    _Integers = npt.NDArray[np.int64]


class Spans(NamedTuple):
    """The documents that have tokens in some windows, one window after another.

    Window i has `counts[i]` of them. A document begins where the one before it stops;
    the first document of a window begins at the window's start. The last document of a
    window may stop after the window. Some documents may have no tokens.
    """

    counts: _Integers
    document: _Integers
    stop: _Integers


def find_documents(ends: _Integers, starts: _Integers, stops: _Integers) -> Spans:
    """Find the documents of the windows `[starts[i], stops[i])`, which are not empty.

    `ends` are the ends of all documents. `stop` of the result may be a view of them.
    """
    # The last end is a limit, because bytes of a map may be damaged, and the caller
    # may verify them only afterwards.
    inner = ends[:-1]
    first = inner.searchsorted(starts, "right")
    last = inner.searchsorted(stops, "left")
    counts = np.maximum(last - first, 0) + 1
    document = ranges(first, counts)
    return Spans(counts, document, ends[document])


def ranges(firsts: _Integers, counts: _Integers) -> _Integers:
    """Return the numbers in each `[firsts[i], firsts[i] + counts[i])`."""
    stops = np.add.accumulate(counts)  # Twice as fast as `cumsum` for a few windows.
    numbers = (firsts - stops + counts).repeat(counts)
    numbers += np.arange(numbers.size)
    return numbers


def begins_of(spans: Spans, starts: _Integers) -> _Integers:
    """Return where each document begins, in windows that begin at `starts`."""
    begins = np.empty(spans.stop.size, np.int64)
    begins[1:] = spans.stop[:-1]
    begins[spans.counts.cumsum() - spans.counts] = starts
    return begins


def rows_of(spans: Spans, start: int, stop: int) -> _Integers:
    """Return rows `(document, start, stop)` of one window, clipped to the window.

    Documents without tokens have no row.
    """
    if not spans.stop.size:  # a window of no tokens
        return np.empty((0, 3), np.int64)
    begins = begins_of(spans, np.array([start]))
    rows = np.column_stack((spans.document, begins, np.minimum(spans.stop, stop)))
    return rows[rows[:, 1] < rows[:, 2]]


def in_bins(
    found: Spans, following: _Integers, starts: _Integers, unit: int
) -> _Integers:
    """Return the documents of a packed shard by their numbers, and -1 for padding.

    `found` has the indices of the ends. `following` has, for each window, the end after
    its last one, or -1 at the end of the shard. All numbers count in the shard.
    """
    after = np.append(found.stop[1:], -1)
    after[found.counts.cumsum() - 1] = following
    # Before a document, each whole bin has one padding.
    document = found.document - begins_of(found, starts) // unit
    document[is_padding(found.stop, after, unit)] = -1
    return document


def is_padding(
    ends: _Integers, following: _Integers, unit: int
) -> npt.NDArray[np.bool_]:
    """Return which ends are the ends of paddings: the last end in each bin.

    `following` is the end after each of `ends`, or -1 at the end of the shard.
    """
    return (ends % unit == 0) & (following != ends)
