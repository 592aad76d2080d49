"""What a curriculum can draw from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens


class DocumentSequence(Protocol):
    """The documents of a corpus, in order; a list of arrays is one."""

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def __getitem__(self, index: int, /) -> Tokens:
        """Return a document as it was written, shape `(n,)`."""
        ...


@runtime_checkable
class TokenReader(Protocol):
    """A corpus as one line of tokens; `Roxxel` is one, and foreign formats can be.

    Methods may be called from many threads at once.
    """

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the corpus."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content: the same on every host, whatever the paths."""
        ...

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer, None if unknown."""
        ...

    @property
    def documents(self) -> DocumentSequence:
        """The documents: `len(documents)` and `documents[i]`, without separators."""
        ...

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Args:
            starts: First token of each window; integers, shape `(n,)`.
            length: Tokens of each window.
            dtype: Of the result. Default: `out`'s, else the stored one.
            out: Shape `(n, length)`; filled and returned.

        Returns:
            Shape `(n, length)`; owned by the caller.

        Raises:
            IndexError: A window leaves `[0, num_tokens)`.
            TypeError: Tokens of this corpus do not fit the dtype.
        """
        ...

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents that have tokens in `[start, stop)`.

        Returns:
            Rows of document, first token and one past the last, clipped to
            `[start, stop)` and in order; shape `(n, 3)`. A separator belongs to the
            document before it.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        ...

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Hint that these windows will be read soon; may do nothing."""
        ...
