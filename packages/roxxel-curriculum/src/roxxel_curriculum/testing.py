"""A reader of synthetic tokens, to test curricula of any size without a file."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt


class PositionReader:
    """A corpus of any size in which the token at position i is i.

    Tokens are positions modulo 2**31, or modulo the range of a smaller integer type.

    Args:
        num_tokens: Number of tokens. Tokens are not stored, so 10**14 is fine.
        name: Part of the fingerprint, so that two corpora of equal size can differ.
        dtype: Dtype of the tokens.
        tokenizer: Identity of the tokenizer.
        document_tokens: Tokens in each document; the last document may be shorter.

    Attributes:
        hints: `(starts, length)` of every call of `will_need`.

    Example:
        >>> reader = PositionReader(10**14)
        >>> reader.read([0, 500], 3).tolist()
        [[0, 1, 2], [500, 501, 502]]
    """

    def __init__(
        self,
        num_tokens: int,
        name: str = "",
        dtype: npt.DTypeLike = np.uint32,
        tokenizer: str | None = None,
        document_tokens: int = 100,
    ) -> None:
        self.num_tokens = num_tokens
        self.dtype = np.dtype(dtype)
        self.tokenizer = tokenizer
        self.document_tokens = document_tokens
        self.hints: list[tuple[npt.NDArray[np.int64], int]] = []
        self.documents = PositionDocuments(self)
        text = f"{name}:{num_tokens}:{self.dtype}:{document_tokens}"
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[Any]:
        """Return the windows `[start, start + length)`, shape `(len(starts), length)`.

        Raises:
            IndexError: A window leaves the corpus.
        """
        first = np.asarray(starts, np.int64)
        if first.size and not (
            first.min() >= 0 and first.max() + length <= self.num_tokens
        ):
            raise IndexError(f"a window leaves the corpus of {self.num_tokens} tokens")
        tokens = first[:, None] + np.arange(length)
        if self.dtype.kind in "iu":
            bits = 8 * self.dtype.itemsize - (self.dtype.kind == "i")
            tokens &= 2 ** min(31, bits) - 1
        result = tokens.astype(self.dtype if dtype is None else dtype)
        if out is None:
            return result
        out[...] = result
        return out

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return `(document, start, stop)` for each document, clipped to the range."""
        size = self.document_tokens
        if stop <= start:
            return np.empty((0, 3), np.int64)
        first, last = start // size, -(-stop // size)
        return np.array(
            [
                (index, max(index * size, start), min((index + 1) * size, stop))
                for index in range(first, last)
            ],
            np.int64,
        )

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Record the hint in `hints`."""
        del documents
        self.hints.append((np.asarray(starts, np.int64), length))


class PositionDocuments:
    """The documents of a `PositionReader`, computed when they are read.

    Example:
        >>> documents = PositionReader(250, document_tokens=100).documents
        >>> len(documents), documents[2].size
        (3, 50)
    """

    def __init__(self, reader: PositionReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        """Return the number of documents."""
        size = self._reader.document_tokens
        return (self._reader.num_tokens + size - 1) // size

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        """Return the tokens of a document."""
        size, num_tokens = self._reader.document_tokens, self._reader.num_tokens
        start = range(len(self))[index] * size
        return self._reader.read([start], min(size, num_tokens - start))[0]
