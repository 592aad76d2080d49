"""A reader of synthetic tokens, for tests of curricula of any size, without files."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
from roxxel_format import TokenReader


class PositionReader(TokenReader):
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
        self._num_tokens = num_tokens
        self._dtype = np.dtype(dtype)
        self._tokenizer = tokenizer
        self.document_tokens = document_tokens
        self.hints: list[tuple[npt.NDArray[np.int64], int]] = []
        text = f"{name}:{num_tokens}:{self.dtype}:{document_tokens}"
        self._digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def num_tokens(self) -> int:
        """Number of tokens, as given."""
        return self._num_tokens

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the tokens."""
        return self._dtype

    @property
    def tokenizer(self) -> str | None:
        """Identity of the tokenizer, as given."""
        return self._tokenizer

    @property
    def fingerprint(self) -> str:
        """Digest of the arguments."""
        return self._digest

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return -(-self.num_tokens // self.document_tokens)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return `(start, stop, 0)`: documents have no separators."""
        start = range(self.num_documents)[document] * self.document_tokens
        return start, min(start + self.document_tokens, self.num_tokens), 0

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

    def window_spans(
        self, starts: npt.ArrayLike, length: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the documents of windows; see `TokenReader.window_spans`."""
        size, first = self.document_tokens, np.asarray(starts, np.int64)
        if not length:
            return np.zeros_like(first), first[:0], first[:0]
        begins: npt.NDArray[np.int64] = first // size
        counts: npt.NDArray[np.int64] = -(-(first + length) // size) - begins
        before = counts.cumsum() - counts
        document = (begins - before).repeat(counts) + np.arange(int(counts.sum()))
        stops = np.minimum((document + 1) * size, self.num_tokens)
        return counts, document, stops

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Record the hint in `hints`."""
        del documents
        self.hints.append((np.asarray(starts, np.int64), length))
