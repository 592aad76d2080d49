"""Read corpora of other formats in place, each as a `TokenReader`.

Megatron's `.bin` with its `.idx`, and flat `.npy` or `.bin` files, are mapped and read
where they are, so a curriculum can be tried without tokenizing again. These formats
have no checksums: damage goes undetected, and a fingerprint covers a sample of the
content. A pickled reader opens its files again by path, and refuses files with another
fingerprint.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.documents import span_rows
from roxxel_format._read.foreign_files import (
    little_endian,
    map_items,
    map_npy,
    read_megatron_index,
)
from roxxel_format._read.line import ArrayPiece, Line
from roxxel_format._read.views import Documents, TokenLine
from roxxel_format._read.windows import (
    check_range,
    parse_index,
    parse_windows,
    result_dtype,
)
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy.typing as npt

    from roxxel_format._read.line import Piece
    from roxxel_format._read.mapped_file import MappedFile
    from roxxel_format._spec.dtypes import Tokens

_SAMPLED_BLOCKS = 1024
_SAMPLE_SIZE = 4096


class MappedTokens:
    """Tokens and documents of one mapped file: the base of the readers below.

    Args:
        file: The file that holds the tokens.
        tokens: The items, an array over `file`, shape `(num_tokens,)`.
        ends: End of each document, in tokens and in order; the last is the number of
            tokens. Shape `(num_documents,)`.
        tokenizer: Name and hash of the tokenizer, if it is known.
    """

    def __init__(
        self,
        file: MappedFile,
        tokens: Tokens,
        ends: npt.NDArray[np.int64],
        tokenizer: str | None,
    ) -> None:
        whole = ArrayPiece(tokens)

        def piece(_: int) -> Piece:
            file.check_size()
            return whole

        self._ends = ends
        self._tokenizer = tokenizer
        self._line = Line((0, tokens.size), tokens.dtype, piece, lambda: 1)

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self._line)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self._ends.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return self._line.dtype

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer as given at construction."""
        return self._tokenizer

    @property
    def fingerprint(self) -> str:
        """Hex digest of the sizes, the documents, and 1024 blocks of the tokens."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(b"roxxel foreign 1", digest_size=16)
        digest.update(f"{self.dtype.str} {self.num_tokens}".encode())
        for start in range(0, self._ends.size, 1 << 16):
            digest.update(self._ends[start : start + (1 << 16)].astype("<i8").tobytes())
        step = max(_SAMPLE_SIZE, self.num_tokens // _SAMPLED_BLOCKS)
        tokens = self._line.range(0, self.num_tokens)
        for start in range(0, self.num_tokens, step):
            digest.update(tokens[start : start + _SAMPLE_SIZE].tobytes())
        digest.update(tokens[-_SAMPLE_SIZE:].tobytes())
        return digest.hexdigest()

    @property
    def tokens(self) -> TokenLine:
        """The line of tokens: `tokens[a:b]`, a read-only view."""
        return TokenLine(self)

    @property
    def documents(self) -> Documents:
        """The documents: `documents[i]`, including whatever separates them."""
        return Documents(self)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`, a read-only view."""
        check_range(start, stop, self.num_tokens)
        return self._line.range(start, stop)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return first token, one past the last, and 0: no separator is known."""
        number = parse_index(document, self.num_documents, "document")
        start = int(self._ends[number - 1]) if number else 0
        return start, int(self._ends[number]), 0

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Args, result and errors are those of `Roxxel.read`. The format does not say
        which tokens occur, so a narrower dtype is checked against the tokens read.
        """
        begins, length = parse_windows(starts, length, self.num_tokens)
        wanted = result_dtype((len(begins), length), dtype, out, self.dtype)
        name = dtypes.stored_name(self.dtype)
        if dtypes.holds_all(name, wanted):
            return self._line.read(begins, length, wanted, out)

        def check(rows: Tokens) -> None:
            values = (int(rows.min()), int(rows.max())) if rows.size else (0, 0)
            is_integer = self.dtype.kind in "biu"
            dtypes.check_readable_as(name, values if is_integer else None, wanted)

        return self._line.read(begins, length, wanted, out, check)

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return rows of document, first token and one past the last, clipped."""
        start, stop = as_index(start), as_index(stop)
        check_range(start, stop, self.num_tokens)
        if start == stop:
            return np.empty((0, 3), np.int64)
        low = int(np.searchsorted(self._ends, start, "right"))
        high = int(np.searchsorted(self._ends, stop, "left")) + 1
        return span_rows(low, self._ends[low:high], start, stop)

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Do nothing: a hint may be ignored."""
        parse_windows(starts, length, self.num_tokens)


class FlatTokens(MappedTokens):
    """A flat `.npy` or `.bin` file of tokens; it counts as one document.

    Args:
        path: The file. A `.npy` file holds one flat array.
        dtype: Item type of a file without a header, such as `.bin`. Items are
            little-endian on every machine; spell others as in `">u2"`.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ShardError: The file does not hold whole items of a known type.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: npt.DTypeLike | None = None,
        *,
        tokenizer: str | None = None,
    ) -> None:
        path = Path(path)
        if path.suffix == ".npy":
            file, tokens = map_npy(path)
        elif dtype is None:
            raise ValueError(
                f'{path}: a file without a header needs dtype, for example "uint16"'
            )
        else:
            file, tokens = map_items(path, little_endian(dtype))
        super().__init__(file, tokens, np.array([tokens.size], np.int64), tokenizer)
        self._arguments = str(path.absolute()), dtype

    def __reduce__(self) -> tuple[object, ...]:
        path, dtype = self._arguments
        keywords = {"dtype": dtype, "tokenizer": self._tokenizer}
        return _opened_again, (type(self), path, keywords, self.fingerprint)


class MegatronTokens(MappedTokens):
    """A Megatron `.bin` file with its `.idx`, as `indexed_dataset.py` writes them.

    Args:
        path: Either file, or their path without the suffix.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ShardError: The index is of another version, or does not fit the tokens.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, tokenizer: str | None = None
    ) -> None:
        path = Path(path)
        stem = path.with_suffix("") if path.suffix in {".bin", ".idx"} else path
        index_path = stem.with_name(stem.name + ".idx")
        dtype, ends = read_megatron_index(index_path)
        file, tokens = map_items(stem.with_name(stem.name + ".bin"), dtype)
        last = int(ends[-1]) if ends.size else 0
        if last != tokens.size:
            raise ShardError(
                f"{index_path}: describes {last} tokens, but the .bin file holds "
                f"{tokens.size}; the two do not belong together"
            )
        super().__init__(file, tokens, ends, tokenizer)
        self._path = str(stem.absolute())

    def __reduce__(self) -> tuple[object, ...]:
        keywords = {"tokenizer": self._tokenizer}
        return _opened_again, (type(self), self._path, keywords, self.fingerprint)


def _opened_again(
    kind: Callable[..., MappedTokens],
    path: str,
    keywords: dict[str, Any],
    fingerprint: str,
) -> MappedTokens:
    """Return a pickled reader.

    Raises:
        ShardError: The files hold other tokens than when the reader was pickled.
    """
    reader = kind(path, **keywords)
    if reader.fingerprint != fingerprint:
        raise ShardError(
            f"{path}: the corpus was replaced: its fingerprint is "
            f"{reader.fingerprint}, but the pickled reader's was {fingerprint}; open "
            "it again"
        )
    return reader
