"""Read an open corpus: windows, ranges, documents and prefetch hints.

`Line` reads the tokens. This module checks dtypes, finds documents, and computes
prefetch hints.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from roxxel_format._read.columns import Column
from roxxel_format._read.line import (
    Line,
    check_range,
    check_readable_as,
    parse_index,
    parse_windows,
    result_dtype,
)
from roxxel_format._read.remote import run_later
from roxxel_format._read.shard import ShardMap
from roxxel_format._read.spans import (
    Spans,
    find_documents,
    in_bins,
    is_padding,
    ranges,
)
from roxxel_format.errors import ChecksumError, ShardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from roxxel_format._read.contents import Contents
    from roxxel_format._spec.layout import Tokens

Check = Literal["headers", "blocks"]

_NAMES = ("id", "path", "url")
_GAP_BYTES = 32 << 10
"""Largest gap in bytes between windows that one request prefetches."""

_CALL_BYTES = (128 << 10) - mmap.PAGESIZE
"""Bytes of one prefetch call: one page less than Linux reads ahead, because a call can
begin inside a page."""


_LARGE_READ = 1 << 13
"""From this many tokens on, a read first checks whether two of them are in memory. If
one is not, it lets the disk read all windows side by side. Without hints, page after
page would block the read (`tests-integration/benchmarks/format_cold.py`). Both checks
cost 2.5 us: half the time of copying so many tokens."""

_WINDOWS_AT_ONCE = 128

_SAMPLED_WINDOWS = 16
"""Maximum number of a hint's windows that are looked up in the system's cache."""


class CorpusReader:
    """Reads one version of a corpus. Safe to use from many threads.

    If `checked`, every read verifies the checksums of its blocks.
    """

    def __init__(self, contents: Contents, *, checked: bool) -> None:
        self.contents = contents
        self._line = Line(
            contents.bounds,
            contents.dtype,
            partial(contents.open_shard, checked=checked),
            ShardMap.piece,
            lambda shard: shard.is_mapped,
            contents.files.copies,
        )
        self._columns: dict[str, Column] = {}
        # The dtypes that are known to hold all tokens.
        self._held_by: set[np.dtype[Any]] = set()
        # The packed shards whose documents are known to end with their bins.
        self._with_bins: set[str] = set()

    def release(self) -> None:
        """Release all maps; the next read opens them again."""
        self._line.release()
        self.contents.files.release()
        for column in list(self._columns.values()):
            column.release()

    def column(self, name: str) -> Column:
        """Return a column; every call returns the same object. See `Roxxel.column`."""
        column = self._columns.get(name)
        if column is None:
            column = Column(name, self.contents)
            column = self._columns.setdefault(name, column)
        return column

    @property
    def names(self) -> Column | None:
        """The column that names documents; None if there is none."""
        columns = self.contents.columns
        for name in _NAMES:
            table = columns.get(name)
            if table is not None and table.per == "document" and all(table.names):
                return self.column(name)
        return None

    def find_documents(self, name: str) -> list[int]:
        """Return the documents of a name; see `Roxxel.find_documents`."""
        names = self.names
        if names is not None:
            return names.find(name)
        for each in _NAMES:
            if each in self.contents.columns:
                self.column(each)  # An error if a shard lacks the column.
        return []

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None,
        out: Tokens | None,
    ) -> Tokens:
        """Return windows; see `Roxxel.read`."""
        begins, length = parse_windows(starts, length, len(self._line))
        shape = len(begins), length
        wanted = result_dtype(shape, dtype, out, self._line.dtype)
        self._check_holds(wanted)  # Before the memory of the result.
        tokens = np.empty(shape, wanted) if out is None else out
        self._fill(begins, tokens, None)
        return tokens

    def read_into(
        self,
        starts: npt.ArrayLike,
        out: Tokens,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Fill rows with windows; see `Roxxel.read_into`."""
        begins, _ = parse_windows(starts, out.shape[1], len(self._line))
        self._fill(begins, out, rows)

    def _fill(self, starts: list[int], out: Tokens, rows: Sequence[int] | None) -> None:
        self._check_holds(out.dtype)
        length = out.shape[1]
        if self.contents.files.is_remote:
            self._request(starts, length, is_urgent=True)
        # Its ends tell enough of a large read: if they are in memory, so is most of it.
        elif len(starts) * length >= _LARGE_READ and self._is_cold(
            [starts[0], starts[-1] + length - 1]
        ):
            self._advise(starts, length, is_urgent=True)
        self._line.fill(starts, out, rows)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`: a view of one shard, or a copy of several."""
        check_range(start, stop, len(self._line))
        return self._line.range(start, stop)

    def damaged_tokens(self, error: ChecksumError) -> tuple[int, int] | None:
        """Return the tokens of a damaged block; see `Roxxel.damaged_tokens`."""
        contents = self.contents
        if error.section != "tokens" or error.block is None:
            return None
        if error.path not in contents.paths:
            return None
        number = contents.paths.index(error.path)
        start, stop = self._line.file(number).layout.tokens_of_block(error.block)
        first = contents.bounds[number]
        stop = min(first + stop, contents.num_tokens)
        # After a compaction, a version may end inside a shard.
        return (first + start, stop) if first + start < stop else None

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return start, stop and length of the ending; see `Roxxel.document_range`."""
        if document < 0:
            raise IndexError(f"document {document} is out of range; count from 0")
        parse_index(document, self.contents.num_documents, "document")
        contents = self.contents
        number = bisect_right(contents.first_documents, document) - 1
        local = document - contents.first_documents[number]
        shard, first = self._line.file(number), contents.bounds[number]
        if contents.bins is not None:
            local = self._packed_entry(shard, local)
        ends = shard.document_ends
        start = first + (int(ends[local - 1]) if local else 0)
        stop = first + int(ends[local])
        return start, stop, shard.layout.head.separator_length

    def _packed_entry(self, shard: ShardMap, document: int) -> int:
        """Return the index of a document's end among all ends of a packed shard."""
        unit, ends = self._unit_of(shard), shard.document_ends

        def documents_before(at: int) -> int:
            # Each bin ends with one padding, so there is one for each whole unit.
            num_paddings = (int(ends[at - 1]) if at else 0) // unit
            return at - num_paddings

        at = bisect_left(range(len(ends)), document, key=documents_before)
        # A padding has as many documents before it as the document that follows it.
        is_after = is_padding(ends[at : at + 1], ends[at + 1 : at + 2], unit)
        return at + int(is_after[0])

    def _unit_of(self, shard: ShardMap) -> int:
        """Return the unit of a packed corpus, whose shards must have bins."""
        bins = self.contents.bins
        assert bins is not None  # noqa: S101 - only for packed corpora
        if shard.path not in self._with_bins:
            ends = shard.document_ends
            borders = np.arange(bins.unit, shard.layout.num_tokens + 1, bins.unit)
            at = np.searchsorted(ends, borders)
            if not bool((ends[at] == borders).all()):
                raise ShardError(
                    f"{shard.path}: its documents do not end with its bins of "
                    f"{bins.unit} tokens; fetch or write this shard again"
                )
            self._with_bins.add(shard.path)
        return bins.unit

    def window_spans(self, starts: npt.ArrayLike, length: int) -> Spans:
        """Return the documents of windows; see `Roxxel.window_spans`."""
        begins, length = parse_windows(starts, length, len(self._line))
        first = np.array(begins, np.int64)
        if not (begins and length):
            return Spans(np.zeros_like(first), first[:0], first[:0])
        bounds = self.contents.bounds
        number = self.contents.shard_of(min(begins))
        if max(begins) + length > bounds[number + 1]:
            return self._spans_across(first, length)
        first -= bounds[number]
        return self._spans_in(number, first, first + length)

    def _spans_across(self, first: npt.NDArray[np.int64], length: int) -> Spans:
        """Return the documents of windows in several shards."""
        bounds, stop = self._bounds, first + length
        # A window has a piece in each shard that holds some of its tokens.
        first_shard = bounds.searchsorted(first, "right") - 1
        num_pieces = bounds.searchsorted(stop, "left") - first_shard
        # For each piece: its shard, its window, its tokens.
        shard_of = ranges(first_shard, num_pieces)
        window_of = np.arange(first.size).repeat(num_pieces)
        starts = np.maximum(first[window_of], bounds[shard_of])
        stops = np.minimum(stop[window_of], bounds[shard_of + 1])
        # The documents, shard by shard, and the piece of each.
        parts: list[Spans] = []
        pieces: list[npt.NDArray[np.int64]] = []
        for shard in np.unique(shard_of).tolist():
            # An empty shard between others has pieces without tokens.
            at = np.flatnonzero((shard_of == shard) & (starts < stops))
            if at.size:
                base = bounds[shard]
                part = self._spans_in(shard, starts[at] - base, stops[at] - base)
                parts.append(part)
                pieces.append(at.repeat(part.counts))
        piece_of = np.concatenate(pieces)
        counts = np.bincount(window_of[piece_of], minlength=first.size)
        # The pieces are in order of windows, so the documents of a window get together.
        order = piece_of.argsort(kind="stable")
        document = np.concatenate([part.document for part in parts])[order]
        return Spans(counts, document, np.concatenate([p.stop for p in parts])[order])

    def _spans_in(
        self,
        number: int,
        starts: npt.NDArray[np.int64],
        stops: npt.NDArray[np.int64],
    ) -> Spans:
        """Return the documents of windows inside a shard.

        `starts` and `stops` count in the shard, the result in the corpus.
        """
        contents, shard = self.contents, self._line.file(number)
        ends = shard.document_ends
        found = find_documents(ends, starts, stops)
        document, before = found.document, contents.first_documents[number]
        if contents.bins is None:
            document += before
        else:
            unit = self._unit_of(shard)
            after = document[found.counts.cumsum() - 1] + 1
            following = np.where(
                after < ends.size, ends[np.minimum(after, ends.size - 1)], -1
            )
            document = in_bins(found, following, starts, unit)
            document[document >= 0] += before
        return Spans(found.counts, document, found.stop + contents.bounds[number])

    @cached_property
    def _bounds(self) -> npt.NDArray[np.int64]:
        return np.array(self.contents.bounds, np.int64)

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Prefetch windows; see `Roxxel.will_need`."""
        begins, length = parse_windows(starts, length, len(self._line))
        if self.contents.files.is_remote:
            run_later(
                lambda: self._request(
                    begins, length, is_urgent=False, documents=documents
                )
            )
            return
        if length:
            sampled = begins[:: max(1, -(-len(begins) // _SAMPLED_WINDOWS))]
            last = [start + length - 1 for start in sampled]
            if self._is_cold([*sampled, *last]):
                self._advise(begins, length, is_urgent=False)

    def _advise(self, starts: list[int], length: int, *, is_urgent: bool) -> None:
        """Advise the system to read the pages of windows into its cache."""
        for span in _stretches(starts, length, self._line.dtype.itemsize):
            for number, start, stop in self._line.parts(*span):
                self._line.file(number).will_need(start, stop, is_urgent=is_urgent)

    def _is_cold(self, tokens: list[int]) -> bool:
        """Return whether some of the tokens are not in memory.

        Advice for pages that are in memory costs several times the reading itself.
        """
        bounds = self.contents.bounds
        for token in tokens:
            number = bisect_right(bounds, token) - 1
            if self._line.file(number).is_cold(token - bounds[number]):
                return True
        return False

    def _request(
        self,
        starts: list[int],
        length: int,
        *,
        is_urgent: bool,
        documents: bool = False,
    ) -> None:
        """Request windows from a bucket, the first windows first.

        Request window by window: a read finds a prefetched range only if it matches its
        own bytes exactly. The shards of `_WINDOWS_AT_ONCE` windows are opened at once.
        """
        line = self._line
        for first in range(0, len(starts), _WINDOWS_AT_ONCE):
            parts = [
                part
                for start in starts[first : first + _WINDOWS_AT_ONCE]
                for part in line.parts(start, start + length)
            ]
            for number in dict.fromkeys(number for number, _, _ in parts):
                if not line.is_open(number):
                    self.contents.will_open(number)
            for number, start, stop in parts:
                shard = line.file(number)
                shard.will_need_sections(documents=documents, is_urgent=is_urgent)
                shard.will_need(start, stop, is_urgent=is_urgent)

    def metadata(self, number: int) -> dict[str, Any]:
        """Return the metadata of a shard."""
        return self._line.file(number).metadata()

    def _check_holds(self, wanted: np.dtype[Any]) -> None:
        """Raise TypeError if a dtype cannot hold the tokens that shards declare."""
        if wanted not in self._held_by:
            contents = self.contents
            check_readable_as(contents.dtype_name, contents.token_range, wanted)
            self._held_by.add(wanted)


def _stretches(
    starts: Sequence[int], length: int, item_size: int
) -> Iterator[tuple[int, int]]:
    """Yield ascending token ranges `(start, stop)` to prefetch.

    Windows near each other are merged, because a disk serves few large requests faster
    than many small requests. Long ranges are divided, because for one `MADV_WILLNEED`
    Linux reads at most its read-ahead setting (128 KiB by default).
    """
    if not (len(starts) and length):
        return
    begins = np.sort(np.array(starts, np.int64))
    is_far = begins[1:] - begins[:-1] > length + _GAP_BYTES // item_size
    (cuts,) = np.nonzero(is_far)
    firsts = begins[np.concatenate(([0], cuts + 1))].tolist()
    stops = (begins[np.concatenate((cuts, [begins.size - 1]))] + length).tolist()
    size = max(1, _CALL_BYTES // item_size)
    for first, stop in zip(firsts, stops, strict=True):
        for start in range(first, stop, size):
            yield start, min(start + size, stop)
