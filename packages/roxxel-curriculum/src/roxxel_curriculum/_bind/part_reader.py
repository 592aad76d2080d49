"""A fixed part of a source: some of its spans, read like a source."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from roxxel_format import TokenReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import ChecksumError
    from roxxel_format.token_reader import Documents

    from roxxel_curriculum._plan.part import Part


class PartReader(TokenReader):
    """Some spans of a source, one after the other, as a token reader.

    Its documents, and the facts about its tokens, are those of the whole source.

    Attributes:
        source: The whole source, at any version that has these spans.
        part: The spans.
    """

    def __init__(self, source: TokenReader, part: Part) -> None:
        self.source = source
        self.part = part
        self._spans = np.asarray(part.chosen(), np.int64)
        text = f"{source.fingerprint} {part.span_tokens} {self._spans.tolist()}"
        self._fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the part."""
        return self.num_spans * self.part.span_tokens

    @property
    def num_spans(self) -> int:
        """Number of equal spans of which the part consists."""
        return self._spans.size

    @property
    def fingerprint(self) -> str:
        """Digest of the source and the spans."""
        return self._fingerprint

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return self.source.dtype

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the source's tokenizer."""
        return self.source.tokenizer

    @property
    def token_range_seen(self) -> tuple[int, int] | None:
        """Least and greatest token of the whole source."""
        return self.source.token_range_seen

    @property
    def separator(self) -> Sequence[int]:
        """The tokens that end each document of the source."""
        return self.source.separator

    @property
    def unit(self) -> int | None:
        """Number of tokens in a bin of the source."""
        return self.source.unit

    @property
    def num_padding(self) -> int:
        """A positive number if the whole source has padding, else 0."""
        return self.source.num_padding

    @property
    def shard_digests(self) -> Sequence[str]:
        """The digests of all shards of the source."""
        return self.source.shard_digests

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the source."""
        return self.source.columns

    @property
    def partial_columns(self) -> Sequence[str]:
        """The columns that only some shards of the source have."""
        return self.source.partial_columns

    @property
    def documents(self) -> Documents:
        """The documents of the whole source."""
        return self.source.documents

    @property
    def num_documents(self) -> int:
        """Number of documents of the whole source."""
        return self.source.num_documents

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Raise ValueError: the part may hold a document in several pieces."""
        raise ValueError(
            f"document {document} has no range in a part of its source; use the whole "
            "source"
        )

    def document_name(self, document: int) -> str | None:
        """Return the name of a document of the source."""
        return self.source.document_name(document)

    def find_documents(self, name: str) -> list[int]:
        """Return the documents of the source that have a name."""
        return self.source.find_documents(name)

    def column(self, name: str) -> _PartColumn:
        """Return a column, with the items of the part."""
        return _PartColumn(self.source.column(name), self)

    def with_check(self, check: Literal["headers", "blocks"]) -> PartReader:
        """Return the same part of a reader that verifies its blocks."""
        return PartReader(self.source.with_check(check), self.part)

    def damaged_tokens(self, error: ChecksumError) -> tuple[int, int] | None:
        """Return the tokens by index in the source, for `without` of its curriculum."""
        return self.source.damaged_tokens(error)

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Return windows of the part; see `TokenReader.read`."""
        first = self.checked(starts, length)
        if self.are_inside(first, length):
            return self.source.read(self.located(first), length, dtype, out)
        kind = self.dtype if dtype is None and out is None else dtype
        rows = np.empty((first.size, length), kind) if out is None else out
        return self.filled(rows, first, lambda at, n: self.source.read(at, n, kind))

    def window_spans(
        self, starts: npt.ArrayLike, length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the documents of windows; see `TokenReader.window_spans`."""
        counts: list[int] = []
        found = [np.empty((2, 0), np.int64)]
        for at in self.checked(starts, length).tolist():
            before = sum(part.shape[1] for part in found)
            shift = at
            for first, stop in self.pieces(at, at + length):
                _, document, stops = self.source.window_spans([first], stop - first)
                # The last document of a piece ends with it: another span follows.
                stops = np.minimum(stops, stop) + (shift - first)
                found.append(np.stack([document, stops]))
                shift += stop - first
            counts.append(sum(part.shape[1] for part in found) - before)
        document, stops = np.concatenate(found, axis=1)
        return np.array(counts, np.int64), document, stops

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Prefetch windows of the part."""
        first = self.located(self.checked(starts, length))
        self.source.will_need(first, length, documents=documents)

    def checked(self, starts: npt.ArrayLike, length: int) -> npt.NDArray[np.int64]:
        """Return starts of windows; raise IndexError if one leaves the part."""
        first = np.asarray(starts, np.int64)
        if first.size and (first.min() < 0 or first.max() + length > self.num_tokens):
            raise IndexError(
                f"a window of {length} tokens leaves [0, {self.num_tokens}), the part "
                "of the source that a proxy reads"
            )
        return first

    def located(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the indices in the source of tokens of the part."""
        span, inside = np.divmod(index, self.part.span_tokens)
        return self._spans[span] * self.part.span_tokens + inside

    def are_inside(self, first: npt.NDArray[np.int64], length: int) -> bool:
        """Return whether no window crosses a span, as those of a curriculum."""
        size = self.part.span_tokens
        return bool((first // size == (first + length - 1) // size).all())

    def filled(
        self,
        rows: npt.NDArray[Any],
        first: npt.NDArray[np.int64],
        read: Callable[[Sequence[int], int], npt.NDArray[Any]],
    ) -> npt.NDArray[Any]:
        """Fill each row with a window of the part, piece by piece."""
        for row, start in zip(rows, first.tolist(), strict=True):
            at = 0
            for a, b in self.pieces(start, start + row.size):
                row[at : at + b - a] = read([a], b - a)[0]
                at += b - a
        return rows

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield where in the source the tokens `[start, stop)` of the part are.

        A piece ends where a span ends.
        """
        size = self.part.span_tokens
        inner = range((start // size + 1) * size, stop, size)
        for a, b in pairwise([start, *inner, stop]):
            if a < b:
                first = int(self.located(np.asarray(a)))
                yield first, first + b - a

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield where in the part the tokens `[start, stop)` of the source are."""
        size = self.part.span_tokens
        for number, span in enumerate(self._spans.tolist()):
            a, b = max(start, span * size), min(stop, (span + 1) * size)
            if a < b:
                shift = (number - span) * size
                yield a + shift, b + shift


class _PartColumn:
    """A column of a source, with one item for each token of the part."""

    def __init__(self, column: Any, part: PartReader) -> None:
        self._column = column
        self._part = part
        self.per = column.per
        self.dtype = column.dtype
        self.digest = f"{column.digest}-{part.fingerprint}"

    def read(self, starts: npt.ArrayLike, length: int) -> npt.NDArray[Any]:
        first, read = self._part.checked(starts, length), self._column.read
        if self._part.are_inside(first, length):
            return read(self._part.located(first), length)
        rows = np.empty((first.size, length), self.dtype)
        return self._part.filled(rows, first, read)

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        first = self._part.checked(starts, length)
        self._column.will_need(self._part.located(first), length)
