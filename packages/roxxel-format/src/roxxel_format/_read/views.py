"""The public views of a corpus: tokens and documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload

import numpy as np

from roxxel_format._read.line import each_at, items_at

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens

_HINT_TOKENS = 1 << 20
"""Number of tokens that iterating over documents prefetches at a time."""


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


class TokenLine:
    """All tokens of a corpus, in order: `tokens[a:b]`, `tokens[i]`, `len(tokens)`.

    A slice inside one shard is a read-only view of the file; a slice across shards is
    a copy. Slices and negative indices work as for a list.
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
        """Number of tokens, as a tuple."""
        return (self._corpus.num_tokens,)

    def __len__(self) -> int:
        return self._corpus.num_tokens

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Tokens: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Any:
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

    `documents[i]` excludes the separator that the writer appended;
    `documents.with_separator[i]` includes it. `in`, `index` and `count` compare whole
    documents, by shape and tokens.
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
    def __getitem__(self, index: SupportsIndex) -> Tokens: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tokens]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Tokens | list[Tokens]:
        return each_at(index, len(self), self._document, "document")

    def __iter__(self) -> Iterator[Tokens]:
        return self._from(0, len(self))

    def __contains__(self, value: object) -> bool:
        return any(_are_equal(document, value) for document in self)

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Return the first index in `[start, stop)` of a document equal to `value`."""
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
        """Yield documents in order, and prefetch the documents that follow."""
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
    """Return whether a value has the same shape and tokens."""
    try:
        other: Tokens = np.asarray(value)
    except ValueError:  # A nested list of unequal lengths is not a document.
        return False
    return np.array_equal(document, other)
