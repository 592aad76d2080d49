"""What a corpus is for its readers: one line of tokens, and its documents.

Inherit `TokenReader` to read a corpus of your own format. With two members of your own,
a curriculum can train on it. Every other member has a default; override it where your
corpus knows more. So no code ever asks whether a reader has a member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from operator import index as as_index
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, final, overload

import numpy as np

from roxxel_format._read.line import (
    check_range,
    each_at,
    items_at,
    parse_index,
    parse_windows,
)
from roxxel_format._read.spans import Spans, find_documents, rows_of
from roxxel_format._spec.layout import stored_name
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from roxxel_format._spec.layout import Tokens
    from roxxel_format.errors import ChecksumError

_HINT_TOKENS = 1 << 20
"""Number of tokens that iterating over documents prefetches at a time."""

_SAMPLED_BLOCKS = 1024
_SAMPLE_SIZE = 4096


class TokenReader(ABC):
    """A corpus, read as one line of tokens: all documents in order; see `Roxxel`.

    A reader of your own defines `num_tokens` and `read`. If it has documents, give
    their ends as `_document_ends`, or override `num_documents`, `document_range` and
    `window_spans`.

    Methods may be called from many threads at once. Equal calls must return equal
    tokens in every process. A reader raises an error if its corpus changes while it is
    open.

    Example:
        >>> class Squares(TokenReader):
        ...     @property
        ...     def num_tokens(self):
        ...         return 1000
        ...
        ...     def read(self, starts, length, dtype=None, out=None):
        ...         tokens = (np.asarray(starts)[:, None] + np.arange(length)) ** 2
        ...         if out is None:
        ...             return tokens.astype(dtype or "uint32")
        ...         out[...] = tokens
        ...         return out
        >>> Squares().tokens[5:8], len(Squares().documents)
        (array([25, 36, 49], dtype=uint32), 1)
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "read" in vars(cls) and "read_into" not in vars(cls):
            # An inherited `read_into` could go past the new `read`.
            cls.read_into = TokenReader.read_into
        if "document_spans" in vars(cls):
            raise TypeError(
                f"{cls.__qualname__} defines document_spans, which follows from "
                "window_spans; define _document_ends, or window_spans"
            )

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Number of tokens, separators included."""

    @abstractmethod
    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Args:
            starts: Index of the first token of each window; integers, shape `(n,)`.
            length: Tokens of each window.
            dtype: Type of the result. Default: the dtype of `out`, or else the stored
                dtype.
            out: Array of shape `(n, length)`, which this method fills and returns.

        Returns:
            Array of shape `(n, length)`, owned by the caller.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype.
        """

    def read_into(
        self,
        starts: npt.ArrayLike,
        out: Tokens,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Fill rows of an array with windows of this corpus.

        Override it to save one copy of each window in a blend, where one array gets the
        windows of all corpora.

        Args:
            starts: Index of the first token of each window; integers, shape `(n,)`.
            out: Array of shape `(B, length)`, of any dtype that holds the tokens.
            rows: Row of `out` for each window, n different integers in `[0, B)`. None:
                the windows fill all rows, in order.
        """
        at = slice(None) if rows is None else list(rows)
        out[at] = self.read(starts, out.shape[1], out.dtype)

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Prefetch windows that the caller will read soon; by default only check them.

        Args:
            starts: Index of the first token of each window; integers, shape `(n,)`.
            length: Tokens of each window.
            documents: Whether the caller will also ask for the documents of the
                windows.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
        """
        del documents
        parse_windows(starts, length, self.num_tokens)

    # What the tokens are.

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token; by default, that of the first."""
        return self._first_token.dtype

    @property
    def dtype_name(self) -> str:
        """Name of the item type."""
        return stored_name(self.dtype)

    @property
    def token_range_seen(self) -> tuple[int, int] | None:
        """Least and greatest token; None if they are not recorded.

        Without it, a model with too small a vocabulary is found at the first batch.
        """
        return None

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer; None if unknown."""
        return None

    @property
    def tokenizer_files(self) -> Mapping[str, str]:
        """The files of the tokenizer kept with the corpus; empty without one."""
        return {}

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments with which the corpus was written; empty if unknown."""
        return {}

    @property
    def separator(self) -> Sequence[int]:
        """The tokens that end each document; empty if none do, or none are known."""
        return ()

    # Which corpus this is.

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content; by default, of up to 1024 samples of the tokens.

        A run resumes only on a corpus of the same fingerprint. The paths of the files
        must not change it.
        """
        return self._sampled_fingerprint

    @property
    def versions(self) -> Sequence[str]:
        """Fingerprints of the versions of this corpus, oldest first."""
        return [self.fingerprint]

    def with_version(self, fingerprint: str) -> TokenReader:
        """Return the same corpus at another version, for a run that began with it.

        Raises:
            ShardError: The corpus has no such version.
        """
        if fingerprint != self.fingerprint:
            raise ShardError(
                f"{self!r}: has no version {fingerprint}, only {self.fingerprint}"
            )
        return self

    @property
    def shard_digests(self) -> Sequence[str]:
        """Digest of the content of each shard, if the corpus has shards.

        By them, a curriculum finds held-out data that is also trained on.
        """
        return ()

    # Damage.

    def with_check(self, check: Literal["headers", "blocks"]) -> TokenReader:
        """Return the same corpus; with `"blocks"`, every read verifies its checksums.

        Raises:
            ValueError: The corpus has no checksums.
        """
        if check == "blocks":
            raise ValueError(
                f"a {type(self).__name__} has no checksums; write the corpus as .rox "
                "shards to verify its blocks"
            )
        return self

    def damaged_tokens(self, error: ChecksumError) -> tuple[int, int] | None:
        """Return the tokens `[start, stop)` of the damaged block that an error reports.

        None if the block is not one of this corpus. By it, the error of a batch can
        name the option that leaves these tokens out.
        """
        del error
        return None

    # Documents.

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        """One past the last token of each document, rising; by default, one document.

        A separator belongs to the document before it.
        """
        return np.array([self.num_tokens], np.int64)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self._document_ends.size

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return `(first token, one past the last token, separator length)`.

        Raises:
            IndexError: There is no such document.
        """
        ends = self._document_ends
        number = parse_index(document, ends.size, "document")
        start = int(ends[number - 1]) if number else 0
        return start, int(ends[number]), len(self.separator)

    def window_spans(
        self, starts: npt.ArrayLike, length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the documents of windows of `length` tokens that begin at `starts`.

        The result holds no starts: each document begins where the one before it stops,
        and the first at the start of its window.

        Returns:
            A tuple of three int64 arrays `(counts, documents, stops)`: the number of
            documents of each window; then for these documents, window by window, the
            index in the corpus (-1 for padding), and one past the last token. The last
            document of a window may stop after the window. Some documents may have no
            tokens.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
        """
        begins, length = parse_windows(starts, length, self.num_tokens)
        first = np.array(begins, np.int64)
        if not (begins and length):
            return Spans(np.zeros_like(first), first[:0], first[:0])
        return find_documents(self._document_ends, first, first + length)

    @final
    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents that have tokens in `[start, stop)`.

        Returns:
            Rows `(document, first token, one past the last token)`, in order and
            clipped to `[start, stop)`; int64, shape `(n, 3)`. A separator belongs to
            the document before it. A document without tokens has no row. Padding of a
            packed corpus has the document -1.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        start, stop = as_index(start), as_index(stop)
        check_range(start, stop, self.num_tokens)
        return rows_of(Spans(*self.window_spans([start], stop - start)), start, stop)

    def document_name(self, document: int) -> str | None:
        """Return the name of a document, such as its id; None if it has no name."""
        del document
        return None

    def find_documents(self, name: str) -> list[int]:
        """Return the numbers of all documents of a name, in order."""
        return [n for n in range(self.num_documents) if self.document_name(n) == name]

    @property
    def unit(self) -> int | None:
        """Number of tokens in a bin; None unless the documents are packed into bins.

        A curriculum then reads windows of whole bins.
        """
        return None

    @property
    def num_padding(self) -> int:
        """Number of tokens that are padding; `window_spans` gives them document -1."""
        return 0

    # Columns.

    @property
    def columns(self) -> Sequence[str]:
        """Names of the columns; a curriculum reads only `loss_mask`."""
        return ()

    @property
    def partial_columns(self) -> Sequence[str]:
        """Names of the columns that only a part of the corpus has."""
        return ()

    def column(self, name: str) -> Any:
        """Return a column, as `Roxxel.column` does.

        Raises:
            ShardError: The corpus, or a part of it, lacks the column.
        """
        raise ShardError(f"{self!r}: has no column {name!r}")

    # Views.

    @property
    def tokens(self) -> TokenLine:
        """All tokens, in order: `tokens[a:b]`."""
        return TokenLine(self)

    @property
    def documents(self) -> Documents:
        """The documents: `documents[i]`, `documents.with_separator[i]`."""
        return Documents(self)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`; the array may be read-only.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        check_range(start, stop, self.num_tokens)
        return self.read(np.array([start]), stop - start)[0]

    @cached_property
    def _first_token(self) -> Tokens:
        return self.read(np.zeros(1, np.int64), 1)

    @cached_property
    def _sampled_fingerprint(self) -> str:
        return sampled_fingerprint(self, self._document_ends.data)


def sampled_fingerprint(reader: TokenReader, key: bytes | memoryview) -> str:
    """Return a digest of the size, 1024 samples of the tokens, and a key."""
    digest = blake2b(b"roxxel foreign 1", digest_size=16)
    digest.update(f"{reader.dtype.str} {reader.num_tokens}".encode())
    digest.update(key)
    stop = reader.num_tokens
    step = max(_SAMPLE_SIZE, stop // _SAMPLED_BLOCKS)
    for start in [*range(0, stop, step), max(0, stop - _SAMPLE_SIZE)]:
        tokens = reader.token_range(start, min(start + _SAMPLE_SIZE, stop))
        digest.update(tokens.tobytes())
    return digest.hexdigest()


class TokenLine:
    """All tokens of a corpus, in order: `tokens[a:b]`, `tokens[i]`, `len(tokens)`.

    A slice inside one shard is a read-only view of the file; a slice across shards is a
    copy. Slices and negative indices work as for a list.

    Example:
        >>> corpus = Roxxel("line.rox")
        >>> written = corpus.write([[5, 6], [7]])
        >>> corpus.tokens[1:].tolist()
        [6, 7]
    """

    __slots__ = ("_corpus",)

    def __init__(self, corpus: TokenReader) -> None:
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
    `documents.with_separator[i]` includes it.

    Example:
        >>> corpus = Roxxel("two.rox")
        >>> written = corpus.write([[5, 6], [7]], separator=0)
        >>> [each.tolist() for each in corpus.documents]
        [[5, 6], [7]]
    """

    __slots__ = ("_corpus", "_with_separator")

    def __init__(self, corpus: TokenReader, *, with_separator: bool = False) -> None:
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

    def __repr__(self) -> str:
        return f"<{len(self)} documents of {self._corpus.dtype}>"

    def __iter__(self) -> Iterator[Tokens]:
        """Yield documents in order, and prefetch the documents that follow."""
        hinted = 0
        for number in range(len(self)):
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
