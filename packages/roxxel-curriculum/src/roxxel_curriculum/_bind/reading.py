"""Read the rows of a batch from all its sources, each source in one call.

The cost depends on the rows and their sources, not on the number of declared sources
(`tests-integration/benchmarks/curriculum_batch.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader

    _Integers = npt.NDArray[np.int64]


def by_source(source: _Integers) -> Iterator[tuple[int, _Integers]]:
    """Yield the index of each source that has rows, and its rows, ascending.

    `source` is the index of the source of each row.
    """
    order, groups = _grouped(source)
    for index, first, stop in groups:
        yield index, order[first:stop]


def _grouped(source: _Integers) -> tuple[_Integers, list[tuple[int, int, int]]]:
    """Return rows ordered by source, and `(source, first, stop)` for each source.

    `first` and `stop` count in the ordered rows.
    """
    order = source.argsort(kind="stable")
    if not source.size:
        return order, []
    ordered = source[order]
    (cuts,) = (ordered[1:] != ordered[:-1]).nonzero()
    stops = [*(cuts + 1).tolist(), source.size]
    firsts = [0, *stops[:-1]]
    return order, [*zip(ordered[firsts].tolist(), firsts, stops, strict=True)]


class RowSpans(NamedTuple):
    """The documents of a batch, row by row.

    `start` and `stop` count tokens of the row's source, and are clipped to the row's
    window. Padding is the document -1. Some documents may have no tokens.
    """

    row: _Integers
    document: _Integers
    start: _Integers
    stop: _Integers


class BatchReader:
    """Reads the rows of batches from several readers.

    In all methods, `source` and `starts` hold the index of each row's reader and the
    first token of its window.
    """

    def __init__(self, readers: Sequence[TokenReader]) -> None:
        self._fills = [reader.read_into for reader in readers]
        self._spans = [reader.window_spans for reader in readers]

    def fill(
        self,
        source: _Integers,
        starts: _Integers,
        out: npt.NDArray[Any],
        rows: _Integers | None = None,
    ) -> None:
        """Fill `rows` of `out` with the windows, each as long as a row.

        By default, fill all rows.
        """
        if len(self._fills) == 1 and rows is None:
            self._fills[0](starts, out)
            return
        order, groups = _grouped(source)
        if len(groups) == 1 and rows is None:
            # Nothing says which rows, so they are filled as one array.
            self._fills[groups[0][0]](starts, out)
            return
        begins = starts[order]
        every = (order if rows is None else rows[order]).tolist()
        for index, first, stop in groups:
            self._fills[index](begins[first:stop], out, every[first:stop])

    def spans(self, source: _Integers, starts: _Integers, length: int) -> RowSpans:
        """Return the documents of the windows, by row."""
        if not (source.size and length):
            return RowSpans(*np.empty((4, 0), np.int64))
        if len(self._spans) == 1:
            order, begins = np.arange(source.size), starts
            counts, document, stop = self._spans[0](starts, length)
            stop = np.array(stop)  # It changes below, and may be a view of a file.
        else:
            order, groups = _grouped(source)
            begins = starts[order]
            found = [
                self._spans[index](begins[first:last], length)
                for index, first, last in groups
            ]
            counts, document, stop = map(np.concatenate, zip(*found, strict=True))
        lasts = np.add.accumulate(counts) - 1
        stop[lasts] = begins + length
        start = np.empty_like(stop)
        start[1:] = stop[:-1]
        start[lasts - counts + 1] = begins
        row = order.repeat(counts)
        if len(self._spans) > 1:
            by_row = row.argsort(kind="stable")
            row, document = row[by_row], document[by_row]
            start, stop = start[by_row], stop[by_row]
        return RowSpans(row, document, start, stop)
