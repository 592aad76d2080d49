"""Search a part of a corpus for n-grams; any process may do it, with one result.

A unit has the documents that begin in a range of tokens. A long document is read in
parts. Each part begins with the end of the part before, so that no n-gram of up to 65
536 tokens is missed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from roxxel_format.texts import text_codec
from roxxel_store.files import replace_file
from roxxel_store.records import RecordError, RecordKind

from roxxel_prepare._run.runners import UnitDone
from roxxel_prepare._scan.words import number_hashes, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from roxxel_format import TokenReader
    from roxxel_format.texts import Pieces, TextCodec

    from roxxel_prepare._scan.grams import Grams

_Rows = npt.NDArray[np.int64]

_CHUNK = 1 << 19
"""Number of tokens searched at a time, unless one document has more."""

_OVERLAP = 1 << 16
_JOINED = 1 << 13
_NO_TOKEN = np.iinfo(np.int64).max

_UNIT = RecordKind(
    "record of a scanned unit", 1, remedy="scan again", mark="roxxel scan unit"
)


class ScanUnit(NamedTuple):
    """A part of a corpus: the documents that begin in its tokens `[start, stop)`."""

    start: int
    stop: int
    itemsize: int

    def __str__(self) -> str:
        return f"tokens [{self.start}:{self.stop}]"

    @property
    def num_bytes(self) -> int:
        """Size of its tokens."""
        return (self.stop - self.start) * self.itemsize


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found in a unit; `found` has the rows of `Scan.found`."""

    counts: UnitDone
    found: list[list[int]]

    def to_bytes(self) -> bytes:
        """Return the content of the unit's file."""
        return _UNIT.to_bytes({"counts": self.counts, "found": self.found})

    @staticmethod
    def read(path: Path) -> Searched | None:
        """Return the record in a file; None without a sound one."""
        try:
            table = _UNIT.read(path)
            return Searched(UnitDone(*table["counts"]), table["found"])
        except (FileNotFoundError, RecordError):
            return None


@dataclass(frozen=True)
class Searcher:
    """Searches the units of one scan; can be pickled.

    Attributes:
        corpus: The corpus, at the version that is searched.
        tokenizer: Its tokenizer, if the corpus keeps none.
        grams: The n-grams to find.
        units: All units.
        records: Where the record of each unit is written.
    """

    corpus: TokenReader
    tokenizer: str | None
    grams: Grams
    units: Sequence[ScanUnit]
    records: Sequence[Path]

    def write_unit(self, number: int) -> UnitDone:
        """Search a unit unless it is done, and return what it counts."""
        path = self.records[number]
        done = Searched.read(path)
        if done is not None:
            return done.counts
        unit = self.units[number]
        found = [np.empty((0, 4), np.int64)]
        num_documents = num_tokens = 0
        for rows in _groups(self.corpus, unit):
            found.append(self._found(rows))
            num_documents += len(rows)
            num_tokens += int((rows[:, 2] - rows[:, 1]).sum())
        merged = _merged(np.concatenate(found)).tolist()
        counts = UnitDone(unit.num_bytes, num_documents, num_tokens)
        replace_file(path, Searched(counts, merged).to_bytes())
        return counts

    @cached_property
    def _codec(self) -> tuple[TextCodec | None, Pieces | None]:
        codec = text_codec(self.corpus, self.tokenizer)
        return codec, None if codec is None else codec.pieces()

    def _found(self, rows: _Rows) -> _Rows:
        """Return the hits in some documents, rows of `Scan.found`, in no order."""
        first, last = int(rows[0, 1]), int(rows[-1, 2])
        tokens = self.corpus.read([first], last - first)[0]
        starts, stops = rows[:, 1] - first, rows[:, 2] - first
        codec, pieces = self._codec
        if codec is None or pieces is not None:
            ids = _without_others(tokens.astype(np.int64), starts, stops)
            if pieces is None:
                hits = self._in_tokens(ids, starts)
            else:
                hits = self._in_pieces(pieces, ids, starts, stops)
        else:
            each = [
                self._in_text(codec, tokens[a:b], a)
                for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
            ]
            hits = np.concatenate(each)
        at = starts.searchsorted(hits[:, 0], "right") - 1
        return np.stack(
            [hits[:, 0] + first, hits[:, 1] + first, rows[at, 0], hits[:, 2]], axis=1
        )

    def _in_tokens(self, ids: _Rows, starts: _Rows) -> _Rows:
        documents = starts.searchsorted(np.arange(ids.size), "right")
        return np.stack(self.grams.find(number_hashes(ids), documents), axis=1)

    def _in_pieces(
        self, pieces: Pieces, ids: _Rows, starts: _Rows, stops: _Rows
    ) -> _Rows:
        """Search the text of all documents at once, then find the tokens of each hit.

        Words are counted in bytes of this text, so `ends` has the byte at which each
        token ends.
        """
        token_bytes = pieces.of(ids, starts, stops)
        for start in starts.tolist():  # No word goes on in the next document.
            token_bytes[start] = b"\n" + token_bytes[start]
        words = words_of(_joined(token_bytes))
        ends = np.fromiter(map(len, token_bytes), np.int64, ids.size).cumsum()
        document_starts = np.append(0, ends)[starts]
        documents = document_starts.searchsorted(words.starts, "right")
        first, last, texts = self.grams.find(words.hashes, documents)
        hits = [
            ends.searchsorted(words.starts[first], "right"),
            ends.searchsorted(words.stops[last - 1], "left") + 1,
            texts,
        ]
        return np.stack(hits, axis=1)

    def _in_text(self, codec: TextCodec, tokens: npt.NDArray[Any], start: int) -> _Rows:
        """Search a document that can only be decoded as a whole."""
        words = words_of(codec.decode(tokens))
        documents = np.zeros(words.hashes.size, np.int64)
        first, last, texts = self.grams.find(words.hashes, documents)

        def num_tokens(num_bytes: int) -> int:
            """Return how many first tokens have at least a number of bytes of text."""
            counts = range(tokens.size + 1)
            return bisect_left(counts, num_bytes, key=lambda n: len(decoded(n)))

        def decoded(count: int) -> bytes:
            return codec.decode(tokens[:count]) if count else b""

        rows = [
            # A character of several tokens has other bytes before its last one.
            [
                start + max(num_tokens(int(words.starts[a]) + 1) - 2, 0),
                start + min(num_tokens(int(words.stops[b - 1])), tokens.size),
                text,
            ]
            for a, b, text in zip(first, last, texts.tolist(), strict=True)
        ]
        return np.array(rows, np.int64).reshape(-1, 3)


def units_of_corpus(corpus: TokenReader, unit_bytes: int) -> list[ScanUnit]:
    """Divide a corpus into units of about `unit_bytes`."""
    size = max(1, unit_bytes // corpus.dtype.itemsize)
    count = max(1, corpus.num_tokens // size)
    ends = [corpus.num_tokens * number // count for number in range(count + 1)]
    itemsize = corpus.dtype.itemsize
    return [ScanUnit(a, b, itemsize) for a, b in pairwise(ends)]


def _groups(corpus: TokenReader, unit: ScanUnit) -> Iterator[_Rows]:
    """Yield rows `(document, start, stop)` of a unit, in groups to read at a time.

    A part of a long document is a row of its own.
    """
    before = max(unit.start - 1, 0)
    rows = corpus.document_spans(before, unit.stop)
    rows = rows[(rows[:, 0] >= 0) & ((rows[:, 1] >= unit.start) | (unit.start == 0))]
    if not len(rows):
        return
    # The last document may end in another unit.
    rows[-1, 2] = corpus.document_range(int(rows[-1, 0]))[1]
    at = 0
    while at < len(rows):
        start = int(rows[at, 1])
        stop = int(rows[:, 2].searchsorted(start + _CHUNK, "right"))
        if stop > at:
            yield rows[at:stop]
            at = stop
            continue
        document, _, end = rows[at].tolist()
        for first in range(start, end - _OVERLAP, _CHUNK - _OVERLAP):
            yield np.array([[document, first, min(first + _CHUNK, end)]])
        at += 1


def _joined(pieces: Sequence[bytes]) -> bytes:
    """Join all bytes, a few at a time, because `join` looks at each object twice."""
    parts = range(0, len(pieces), _JOINED)
    return b"".join([b"".join(pieces[at : at + _JOINED]) for at in parts])


def _without_others(ids: _Rows, starts: _Rows, stops: _Rows) -> _Rows:
    """Return tokens; those outside of documents get ids that no token has."""
    change = np.zeros(ids.size + 1, np.int64)
    # No document here is empty, so no two of them begin or end at one token.
    change[starts] += 1
    change[stops] -= 1
    ids[change[:-1].cumsum() == 0] = _NO_TOKEN
    return ids


def _merged(found: _Rows) -> _Rows:
    """Return the hits in order; merge those of a document that overlap."""
    if not len(found):
        return found
    starts, stops, _, texts = found.T
    found = found[np.lexsort((texts, stops, starts))]
    starts, stops, documents, _ = found.T
    reached = np.maximum.accumulate(stops)
    is_new = np.append(
        True, (starts[1:] > reached[:-1]) | (documents[1:] != documents[:-1])
    )
    first = np.flatnonzero(is_new)
    merged = found[first]
    merged[:, 1] = reached[np.append(first[1:], len(found)) - 1]
    return merged
