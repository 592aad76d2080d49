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
    if not source.size:
        return
    order = source.argsort(kind="stable")
    ordered = source[order]
    for which in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        yield int(source[which[0]]), which


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
        for index, which in by_source(source):
            at = which if rows is None else rows[which]
            self._fills[index](starts[which], out, at.tolist())

    def spans(self, source: _Integers, starts: _Integers, length: int) -> RowSpans:
        """Return the documents of the windows, by row."""
        if not (source.size and length):
            return RowSpans(*np.empty((4, 0), np.int64))
        groups = [*by_source(source)]
        order = np.concatenate([which for _, which in groups])
        begins = starts[order]
        found = [self._spans[index](starts[which], length) for index, which in groups]
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
