"""Sequences over a corpus: its tokens and its documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

from roxxel_format._read.windows import parse_index

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

_HINT_TOKENS = 1 << 20
"""Tokens that an iteration over documents prefetches at a time."""


class _Corpus(Protocol):
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def token_range(self, start: int, stop: int) -> Tokens: ...
    def document_range(self, document: int) -> tuple[int, int, int]: ...
    def will_need(self, starts: npt.ArrayLike, length: int) -> None: ...


def items_at(
    key: int | slice, length: int, read: Callable[[int, int], Tokens], what: str
) -> Any:
    """Return what a list of `length` items has at an index or a slice.

    Args:
        key: The index or the slice.
        length: Number of items.
        read: Returns the items `[start, stop)`.
        what: Names an item in errors.

    Raises:
        IndexError: The index is out of range.
    """
    if not isinstance(key, slice):
        number = parse_index(key, length, what)
        return read(number, number + 1)[0]
    start, stop, step = key.indices(length)
    if step == 1:
        return read(start, max(start, stop))
    span = range(start, stop, step)
    if not span:
        return read(0, 0)
    return read(min(span[0], span[-1]), max(span[0], span[-1]) + 1)[::step]


class TokenLine:
    """All tokens of a corpus, in order: `tokens[a:b]`, `tokens[i]`, `len(tokens)`.

    A slice inside one shard is a read-only view of the file; a slice across shards is
    a copy. Slices and negative indices mean what they mean for a list.
    """

    __slots__ = ("_corpus",)

    def __init__(self, corpus: _Corpus) -> None:
        self._corpus = corpus

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return self._corpus.dtype

    @property
    def shape(self) -> tuple[int]:
        """Number of tokens."""
        return (self._corpus.num_tokens,)

    def __len__(self) -> int:
        return self._corpus.num_tokens

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Tokens: ...
    def __getitem__(self, key: int | slice) -> Any:
        corpus = self._corpus
        return items_at(key, corpus.num_tokens, corpus.token_range, "token")

    def __array__(
        self, dtype: np.dtype[Any] | None = None, *, copy: bool | None = None
    ) -> Tokens:
        tokens = self._corpus.token_range(0, self._corpus.num_tokens)
        return np.array(tokens, dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<{len(self)} tokens of {self.dtype}>"


class Documents(Sequence["Tokens"]):
    """The documents of a corpus: `documents[i]`, `len(documents)`, iteration.

    `documents[i]` is the document as it was written;
    `documents.with_separator[i]` includes what the writer appended. `in`, `index` and
    `count` compare whole documents, by shape and tokens.
    """

    __slots__ = ("_corpus", "_with_separator")

    def __init__(self, corpus: _Corpus, *, with_separator: bool = False) -> None:
        self._corpus = corpus
        self._with_separator = with_separator

    @property
    def with_separator(self) -> Documents:
        """The same documents, each followed by its separator."""
        return Documents(self._corpus, with_separator=True)

    def __len__(self) -> int:
        return self._corpus.num_documents

    @overload
    def __getitem__(self, index: int) -> Tokens: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tokens]: ...
    def __getitem__(self, index: int | slice) -> Tokens | list[Tokens]:
        if isinstance(index, slice):
            return [self._document(i) for i in range(*index.indices(len(self)))]
        return self._document(parse_index(index, len(self), "document"))

    def __iter__(self) -> Iterator[Tokens]:
        return self._from(0, len(self))

    def __contains__(self, value: object) -> bool:
        return any(_are_equal(document, value) for document in self)

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Return the number of the first document that equals `value`.

        Args:
            value: Tokens: an array or a list.
            start: First document to compare.
            stop: One past the last document to compare. Default: all.

        Raises:
            ValueError: No document equals `value`.
        """
        first, last, _ = slice(start, stop).indices(len(self))
        for number, document in enumerate(self._from(first, last), first):
            if _are_equal(document, value):
                return number
        raise ValueError(f"no document equals {value!r:.100}")

    def count(self, value: object) -> int:
        """Return the number of documents that equal `value`."""
        return sum(_are_equal(document, value) for document in self)

    def __repr__(self) -> str:
        return f"<{len(self)} documents of {self._corpus.dtype}>"

    def _from(self, first: int, last: int) -> Iterator[Tokens]:
        """Yield documents in order, and prefetch the next ones."""
        hinted = 0
        for number in range(first, last):
            start, stop, separator = self._corpus.document_range(number)
            if stop > hinted:
                hinted = min(stop + _HINT_TOKENS, self._corpus.num_tokens)
                self._corpus.will_need(np.array([start]), hinted - start)
            yield self._tokens(start, stop, separator)

    def _document(self, number: int) -> Tokens:
        return self._tokens(*self._corpus.document_range(number))

    def _tokens(self, start: int, stop: int, separator: int) -> Tokens:
        if not self._with_separator:
            stop -= separator
        return self._corpus.token_range(start, stop)


def _are_equal(document: Tokens, value: object) -> bool:
    """Return whether a value is the same sequence of tokens."""
    try:
        other: Tokens = np.asarray(value)
    except ValueError:  # A nested list of unequal lengths is not a document.
        return False
    return np.array_equal(document, other)
