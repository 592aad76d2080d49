"""The interface between a corpus and a curriculum.

A curriculum needs only a `TokenReader`. It also uses these members if the reader's
class defines them:

- `token_range_seen -> tuple[int, int] | None`: least and greatest token; None for
  floats. A curriculum checks dtypes and vocabularies with it before the first batch.
- `with_version(fingerprint) -> TokenReader`: the same corpus at another version; raises
  `ShardError` if the corpus has no such version. Resuming a run on a corpus that grew
  needs this member.
- `with_check("blocks") -> TokenReader`: the same corpus, but every read verifies the
  checksums of its blocks.
- `shard_digests -> Sequence[str]`: digest of the content of each shard. A curriculum
  finds with them that a held-out corpus shares shards with a training corpus.
- `unit -> int | None`: the number of tokens in a bin, if the documents are packed into
  bins. A curriculum then reads windows of whole bins. `document_spans` gives padding
  the document -1, and `num_padding -> int` counts its tokens.
- `read_into(starts, out, rows)`: fills `rows` of the array `out` with the windows that
  begin at `starts`. A curriculum fills the rows of a batch from all its sources with
  it; from other readers it copies what `read` returns.
- `window_spans(starts, length)`: the documents of many windows, as three arrays; see
  `Roxxel.window_spans`. A curriculum calls it once a batch and source, and
  `document_spans` of other readers once a row.
- `separator -> Sequence[int]`: the tokens that end each document; empty if none is
  known. The umbrella finds with it which token ends a text.
- `whole -> TokenReader`: the corpus, if the reader is a part of one, as in the proxy of
  a run. Texts are decoded as those of the whole corpus.
- `damaged_tokens(error) -> tuple[int, int] | None`: the tokens `[start, stop)` of the
  damaged block that a `ChecksumError` reports. A sampler's error about the block then
  has the option that leaves these tokens out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from roxxel_format._spec.dtypes import Tokens


class DocumentSequence(Protocol):
    """The documents of a corpus, in order, such as a list of arrays.

    Example:
        >>> documents: DocumentSequence = [np.arange(3), np.arange(2)]
        >>> len(documents), documents[1].tolist()
        (2, [0, 1])
    """

    def __len__(self) -> int:
        """Return the number of documents."""
        ...

    def __getitem__(self, index: int, /) -> Tokens:
        """Return the tokens of a document, shape `(n,)`."""
        ...


@runtime_checkable
class TokenReader(Protocol):
    """A corpus, read as one line of tokens: all documents in order; see `Roxxel`.

    Methods may be called from many threads at once. Equal calls return equal tokens in
    every process. A reader raises if its corpus changes while it is open.

    Example:
        >>> corpus = Roxxel("read_*.rox")
        >>> written = corpus.write([[5, 6, 7]], vocab_size=100)
        >>> isinstance(corpus, TokenReader)
        True
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
        """Hex digest of the content; the paths of the files do not change it."""
        ...

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer; None if unknown."""
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
        ...

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the documents that have tokens in `[start, stop)`.

        Returns:
            Rows `(document, first token, one past the last token)`, in order and
            clipped to `[start, stop)`; shape `(n, 3)`. A separator belongs to the
            document before it.

        Raises:
            IndexError: The range leaves `[0, num_tokens]`.
        """
        ...

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Prefetch windows that the caller will read soon; may do nothing.

        Args:
            starts: Index of the first token of each window; integers, shape `(n,)`.
            length: Tokens of each window.
            documents: Whether `document_spans` of the windows will be called too. A
                reader may leave out this keyword.
        """
        ...
