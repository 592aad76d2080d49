"""A fixed part of a source: some of its spans, read as a source of their own."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_curriculum._bind.sources import optional
from roxxel_curriculum._errors import CurriculumError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from roxxel_format import TokenReader
    from roxxel_format.protocol import DocumentSequence


class PartReader:
    """Some spans of a source, one after the other, as a token reader.

    Numbers of documents are those of the source.

    Args:
        source: The source.
        spans: Numbers of the spans, rising.
        span_tokens: Tokens of a span.
    """

    def __init__(
        self, source: TokenReader, spans: Sequence[int], span_tokens: int
    ) -> None:
        self._source: Any = source
        self._spans = np.asarray(spans, np.int64)
        self._span_tokens = span_tokens
        self.num_tokens = len(spans) * span_tokens
        self.dtype: np.dtype[Any] = np.dtype(source.dtype)
        self.tokenizer = source.tokenizer
        text = f"{source.fingerprint} {span_tokens} {self._spans.tolist()}"
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def whole(self) -> TokenReader:
        """The source."""
        return self._source

    @property
    def num_spans(self) -> int:
        """Number of equal spans into which the part is cut already."""
        return self._spans.size

    @property
    def documents(self) -> DocumentSequence:
        """The documents of the whole source."""
        return self._source.documents

    @property
    def token_range_seen(self) -> tuple[int, int] | None:
        """Least and greatest token of the whole source."""
        return optional(self._source, "token_range_seen")

    @property
    def separator(self) -> Sequence[int]:
        """The tokens that end each document of the source."""
        return optional(self._source, "separator") or ()

    @property
    def unit(self) -> int | None:
        """Number of tokens in a bin of the source."""
        return optional(self._source, "unit")

    @property
    def num_padding(self) -> int:
        """A number of padding tokens: above 0 if the whole source has padding."""
        return optional(self._source, "num_padding") or 0

    @property
    def shard_digests(self) -> Sequence[str]:
        """The digests of all shards of the source."""
        return optional(self._source, "shard_digests") or ()

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the source."""
        return optional(self._source, "columns") or ()

    def column(self, name: str) -> _PartColumn:
        """Return a column, with the items of the part."""
        return _PartColumn(self._source.column(name), self)

    def with_check(self, check: str) -> PartReader:
        """Return the same part of a reader that verifies its blocks."""
        with_check = optional(self._source, "with_check")
        if with_check is None:
            raise CurriculumError(
                f'check="{check}": the source is a {type(self._source).__name__}, '
                "which has no checksums; write it as .rox shards to verify its blocks"
            )
        return PartReader(with_check(check), self._spans.tolist(), self._span_tokens)

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Return windows of the part; see `TokenReader.read`."""
        first = self.checked(starts, length)
        is_inside = first // self._span_tokens == (first + length - 1) // (
            self._span_tokens
        )
        if is_inside.all():
            return self._source.read(self.located(first), length, dtype, out)
        kind = self.dtype if dtype is None and out is None else dtype
        rows = np.empty((first.size, length), kind) if out is None else out
        for row, start in enumerate(first.tolist()):
            at = 0
            for a, b in self.pieces(start, start + length):
                rows[row, at : at + b - a] = self._source.read([a], b - a, kind)[0]
                at += b - a
        return rows

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents of the source in some tokens of the part."""
        found = [np.empty((0, 3), np.int64)]
        at = start
        for a, b in self.pieces(start, stop):
            spans = np.array(self._source.document_spans(a, b))
            spans[:, 1:] += at - a
            found.append(spans)
            at += b - a
        return np.concatenate(found)

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Prefetch windows of the part."""
        more = {"documents": documents} if documents else {}
        self._source.will_need(
            self.located(self.checked(starts, length)), length, **more
        )

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
        """Return where in the source tokens of the part are."""
        span, inside = np.divmod(index, self._span_tokens)
        return self._spans[span] * self._span_tokens + inside

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the tokens of the source that are tokens `[start, stop)` of the part.

        A piece ends where a span ends.
        """
        size = self._span_tokens
        inner = range((start // size + 1) * size, stop, size)
        for a, b in pairwise([start, *inner, stop]):
            if a < b:
                first = int(self.located(np.asarray(a)))
                yield first, first + b - a

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the tokens of the part that are among tokens of the source."""
        size = self._span_tokens
        for number, span in enumerate(self._spans.tolist()):
            a, b = max(start, span * size), min(stop, (span + 1) * size)
            if a < b:
                shift = (number - span) * size
                yield a + shift, b + shift


class _PartColumn:
    """A column of a source, with an item for each token of a part."""

    def __init__(self, column: Any, part: PartReader) -> None:
        self._column = column
        self._part = part
        self.per = column.per
        self.dtype = column.dtype
        self.digest = f"{column.digest}-{part.fingerprint}"

    def read(self, starts: npt.ArrayLike, length: int) -> npt.NDArray[Any]:
        """Return the items of windows of the part."""
        first = self._part.checked(starts, length)
        return self._column.read(self._part.located(first), length)

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Prefetch the items of windows of the part."""
        first = self._part.checked(starts, length)
        self._column.will_need(self._part.located(first), length)
