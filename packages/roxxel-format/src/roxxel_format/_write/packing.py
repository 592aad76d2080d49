"""Pack the documents of a unit into bins of equal size.

A document stays whole unless it is longer than a bin. A longer document is cut into
whole bins and a rest, which is packed like a document. Packing is best-fit decreasing:
the longest part comes first, and each goes into the fullest bin that has room for it
(Ding et al., *Fewer Truncations Improve Language Modeling*, 2024, arXiv 2404.10830).
The result depends on the documents alone, so a unit always has the same bins.

The free room of a bin is less than its size. So the bins are grouped by their free
room, and one integer has a bit for each room that some bin has. This packs a million
documents a second (`tests-integration/benchmarks/format_packing.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roxxel_format._write.casting import DocumentError, OutOfRangeError
from roxxel_format._write.recipe import EncodedRow, Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from roxxel_format._spec.layout import Tokens
    from roxxel_format._write.casting import Caster
    from roxxel_format._write.recipe import Ranges

_CAST_TOKENS = 1 << 20
_NO_ROW = Row(None)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a document in a bin, its ending included; mostly the whole document.

    `row.learned` counts from the first token of the part. `is_cut` marks the first part
    of a document that is longer than a bin.
    """

    row: EncodedRow
    is_cut: bool


def packed(
    rows: Iterable[EncodedRow], unit: int, caster: Caster
) -> Iterator[list[Part]]:
    """Yield bins of at most `unit` tokens.

    The bins, and the parts in each bin, are in the order of the documents. A document
    without tokens and ending is left out.

    Args:
        rows: The documents, in the order of the inputs; all of them are held in memory.
        unit: Tokens of a bin.
        caster: The item type in which the documents are held, and what ends each.

    Raises:
        DocumentError: A value is out of range; the error has the document's number.
        DocumentTypeError: The dtype of a document cannot be stored.
    """
    held = _Held(caster)
    for row in rows:
        held.add(row)
    held.cast()
    sizes = np.array(held.sizes, np.int64)
    num_parts = -(-sizes // unit)
    document = np.repeat(np.arange(sizes.size), num_parts)
    first_part = np.cumsum(num_parts) - num_parts
    start = (np.arange(document.size) - first_part[document]) * unit
    size = np.minimum(sizes[document] - start, unit)
    bins = best_fit(size, unit)
    by_bin = np.argsort(bins, kind="stable")
    borders = np.flatnonzero(np.diff(bins[by_bin], prepend=-1))
    order = np.argsort(by_bin[borders], kind="stable")
    stops = np.append(borders[1:], by_bin.size)
    documents: list[int] = document.tolist()
    starts: list[int] = start.tolist()
    lengths: list[int] = size.tolist()
    for first, last in zip(borders[order].tolist(), stops[order].tolist(), strict=True):
        chosen: list[int] = by_bin[first:last].tolist()
        yield [held.part(documents[at], starts[at], lengths[at]) for at in chosen]


def best_fit(sizes: npt.NDArray[np.int64], unit: int) -> npt.NDArray[np.int64]:
    """Return the bin of each part, best-fit decreasing; bins are numbered from 0.

    Args:
        sizes: Tokens of each part, in `[1, unit]`.
        unit: Tokens of a bin.
    """
    order = np.argsort(-sizes, kind="stable")
    distinct, counts = np.unique(-sizes, return_counts=True)
    by_room: dict[int, list[int]] = {}  # the bins with some room left
    rooms = 0  # bit r is 1 if there is a bin of room r
    num_bins = 0
    chosen: list[int] = []
    for size, count in zip((-distinct).tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            fitting = rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                bins = by_room[room]
                number = bins.pop()
                if not bins:
                    rooms ^= 1 << room
            else:
                room, number = unit, num_bins
                num_bins += 1
            # After one part, this bin is still the fullest that has room for the next.
            num_here = min(left, room // size)
            chosen += [number] * num_here
            left -= num_here
            room -= num_here * size
            if room:
                by_room.setdefault(room, []).append(number)
                rooms |= 1 << room
    found = np.empty(sizes.size, np.int64)
    found[order] = chosen
    return found


class _Held:
    """The documents of a unit, in the item type of the corpus, with their endings.

    Documents are cast many at a time, in chunks. `sizes` are the numbers of tokens of
    each document.
    """

    def __init__(self, caster: Caster) -> None:
        self.sizes: list[int] = []
        self._caster = caster
        self._rows: list[tuple[Row, Ranges]] = []  # each with its tokens to learn
        self._chunks: list[Tokens] = []
        self._places: list[tuple[int, int]] = []  # chunk, and first token in the chunk
        self._waiting: list[Tokens] = []
        self._num_waiting = 0

    def add(self, row: EncodedRow) -> None:
        """Hold a document; its array may change afterwards."""
        tokens = row.tokens
        if not tokens.size:  # The type of an empty document says nothing.
            tokens = self._caster.ending[:0]
        if self._num_waiting and (
            tokens.dtype != self._waiting[0].dtype or self._num_waiting > _CAST_TOKENS
        ):
            self.cast()
        self._places.append((len(self._chunks), self._num_waiting))
        self._waiting.append(tokens.copy())
        size = tokens.size + self._caster.ending.size
        self._num_waiting += size
        self.sizes.append(size)
        # The content of a row is a text, which would fill the memory.
        kept = Row(None, None, row.row.id, row.row.path)
        is_named = (kept.id, kept.path) != (None, None)
        self._rows.append((kept if is_named else _NO_ROW, row.learned))

    def cast(self) -> None:
        """Cast the waiting documents; raise an error for the first out of range."""
        waiting, first = self._waiting, len(self._places) - len(self._waiting)
        if not waiting:
            return
        ending = self._caster.check_source(waiting[0].dtype, first)
        if ending is None:  # The documents' dtype does not hold it.
            stops = np.cumsum([each.size for each in waiting])
            waiting = np.split(self._cast(waiting, stops, first), stops[:-1])
            ending = self._caster.ending
        stops = np.cumsum([each.size + ending.size for each in waiting])
        if ending.size:
            waiting = [part for each in waiting for part in (each, ending)]
        self._chunks.append(self._cast(waiting, stops, first))
        self._waiting, self._num_waiting = [], 0

    def _cast(
        self, parts: list[Tokens], stops: npt.NDArray[np.int64], first: int
    ) -> Tokens:
        """Join and cast documents that end at `stops`; `first` is the first number."""
        try:
            return self._caster.cast(np.concatenate(parts))
        except OutOfRangeError as error:
            number = bisect_right(stops.tolist(), error.index)
            raise DocumentError(
                first + number,
                f": value {error.value} is outside {self._caster.limits_text}; "
                f"{self._caster.remedy}, or correct the document",
            ) from None

    def part(self, document: int, start: int, size: int) -> Part:
        chunk, first = self._places[document]
        row, learned = self._rows[document]
        first += start
        tokens = self._chunks[chunk][first : first + size]
        if start:
            learned = tuple((one - start, other - start) for one, other in learned)
        is_cut = not start and size < self.sizes[document]
        return Part(EncodedRow(tokens, row, learned), is_cut)
