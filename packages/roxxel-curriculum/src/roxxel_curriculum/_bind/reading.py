"""Reads the rows of a batch from all its sources, each source in one call.

The cost follows the rows and the sources that they have, not the declared sources
(`tests-integration/benchmarks/curriculum_batch.py`).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader

    _Integers = npt.NDArray[np.int64]


def by_source(source: _Integers) -> Iterator[tuple[int, _Integers]]:
    """Yield the index of each source that some rows have, and these rows, ascending.

    `source` is the index of the source of each row.
    """
    order = source.argsort(kind="stable")
    ordered = source[order]
    (cuts,) = (ordered[1:] != ordered[:-1]).nonzero()
    firsts = [0, *(cuts + 1).tolist()] if source.size else []
    for first, stop in pairwise([*firsts, source.size]):
        yield int(ordered[first]), order[first:stop]


class BatchReader:
    """Reads the rows of batches from several readers.

    In all methods, `source` and `starts` hold the index of each row's reader and the
    first token of its window.
    """

    def __init__(self, readers: Sequence[TokenReader]) -> None:
        self._fills = [
            _beside(reader, "read_into", "read") or partial(_copy_into, reader)
            for reader in readers
        ]
        self._spans = [
            _beside(reader, "window_spans", "document_spans")
            or partial(_stacked_spans, reader)
            for reader in readers
        ]

    def fill(
        self,
        source: _Integers,
        starts: _Integers,
        out: npt.NDArray[Any],
        rows: _Integers | None = None,
    ) -> None:
        """Fill `rows` of `out` with the windows, which are as long as its rows.

        By default the windows are those of all rows.
        """
        if len(self._fills) == 1 and rows is None:
            self._fills[0](starts, out)
            return
        for index, which in by_source(source):
            if which.size < source.size or rows is not None:
                at = which if rows is None else rows[which]
                self._fills[index](starts[which], out, at.tolist())
            else:  # Nothing says which rows, so they are filled as one array.
                self._fills[index](starts, out)

    def spans(self, source: _Integers, starts: _Integers, length: int) -> _Integers:
        """Return the documents of the windows, by row.

        The result has rows `(row, document, start, stop)`, of which the last two count
        tokens of the source; see `Roxxel.window_spans`.
        """
        parts: list[_Integers] = []
        for index, which in by_source(source):
            found = self._spans[index](starts[which], length)
            found[:, 0] = which[found[:, 0]]
            parts.append(found)
        if len(parts) == 1:
            return parts[0]
        found = np.concatenate([*parts, np.empty((0, 4), np.int64)])
        return found[np.argsort(found[:, 0], kind="stable")]


def _beside(reader: TokenReader, member: str, required: str) -> Any:
    """Return an optional method that does the work of a required one; None without.

    A class that overrides only the required method reads otherwise than the optional
    method that it inherits.
    """
    for kind in type(reader).__mro__:
        if member in vars(kind):
            return getattr(reader, member)
        if required in vars(kind):
            break
    return None


def _copy_into(
    reader: TokenReader,
    starts: _Integers,
    out: npt.NDArray[Any],
    rows: list[int] | None = None,
) -> None:
    at = slice(None) if rows is None else rows
    out[at] = reader.read(starts, out.shape[1], out.dtype)


def _stacked_spans(reader: TokenReader, starts: _Integers, length: int) -> _Integers:
    parts = [np.empty((0, 4), np.int64)]
    for window, start in enumerate(starts.tolist()):
        spans = reader.document_spans(start, start + length)
        parts.append(np.insert(np.asarray(spans, np.int64), 0, window, axis=1))
    return np.concatenate(parts)
