"""A corpus as sequences: its tokens, and its documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Protocol, overload

import numpy as np

if TYPE_CHECKING:
    from roxxel_format._spec.dtypes import Tokens


class _Corpus(Protocol):
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_documents(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def token_range(self, start: int, stop: int) -> Tokens: ...
    def document_range(self, document: int) -> tuple[int, int, int]: ...


class TokenLine:
    """All tokens of a corpus, in order: `tokens[a:b]`, `tokens[i]`, `len(tokens)`.

    A slice inside one shard is a read-only view of the file; one across shards is a
    copy. Slices and negative indices mean what they mean for a list.
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
        length = self._corpus.num_tokens
        if isinstance(key, slice):
            start, stop, step = key.indices(length)
            if step == 1:
                return self._corpus.token_range(start, max(start, stop))
            span = range(start, stop, step)
            if not span:
                return self._corpus.token_range(0, 0)
            low, high = min(span[0], span[-1]), max(span[0], span[-1])
            part = self._corpus.token_range(low, high + 1)
            return part[::step]
        at = _place(as_index(key), length, "token")
        return self._corpus.token_range(at, at + 1)[0]

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
    `documents.with_separator[i]` includes what the writer appended.
    """

    __slots__ = ("_corpus", "_with_separator")

    def __init__(self, corpus: _Corpus, *, with_separator: bool = False) -> None:
        self._corpus = corpus
        self._with_separator = with_separator

    @property
    def with_separator(self) -> Documents:
        """The same documents, each with the separator behind it."""
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
        return self._document(_place(as_index(index), len(self), "document"))

    def __iter__(self) -> Iterator[Tokens]:
        for number in range(len(self)):
            yield self._document(number)

    def __repr__(self) -> str:
        return f"<{len(self)} documents of {self._corpus.dtype}>"

    def _document(self, number: int) -> Tokens:
        start, stop, separator = self._corpus.document_range(number)
        if not self._with_separator:
            stop -= separator
        return self._corpus.token_range(start, stop)


def _place(position: int, length: int, what: str) -> int:
    if not -length <= position < length:
        raise IndexError(f"{what} {position} is out of range; there are {length}")
    return position % length
