"""The interface between a corpus and a curriculum.

`TokenReader` is all that a curriculum needs. A reader may have these members as well;
a curriculum looks them up with `getattr(reader, name, None)`:

- `token_range_seen -> tuple[int, int] | None`: least and greatest token; None for
  floats. It lets a curriculum check dtypes and vocabularies before the first batch.
- `with_version(fingerprint) -> TokenReader`: the same corpus as it was at a version;
  `ShardError` if it has no such version. It lets a run resume on a corpus that grew.
- `with_check("blocks") -> TokenReader`: the same corpus, every block verified.
- `column(name) -> Column`: one value for each token or document, with `per`, `dtype`,
  `digest`, `len()`, `[a:b]` and, per token, `read(starts, length, out=None)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens


class DocumentSequence(Protocol):
    """The documents of a corpus, in order, such as a list of arrays."""

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def __getitem__(self, index: int, /) -> Tokens:
        """Return a document as it was written, shape `(n,)`."""
        ...


@runtime_checkable
class TokenReader(Protocol):
    """A corpus as one line of tokens, such as `Roxxel`.

    Methods may be called from many threads at once. Equal calls return equal tokens,
    in every process: a corpus that changes while it is open is an error.
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
            dtype: Type of the result. Default: `out`'s, else the stored one.
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
