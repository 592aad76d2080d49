"""Read corpora of other formats in place, each as a `TokenReader`.

The readers map Megatron's `.bin` with its `.idx`, flat `.npy` or `.bin` files, and the
shards of the first Roxxel, which end with `ROXXEL02`. So a curriculum can read an
existing corpus without tokenizing again. These formats have no checksums, so readers
cannot detect damaged tokens, and a fingerprint covers only a sample of the tokens. An
unpickled reader opens its files by path, and raises if their fingerprint changed.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from itertools import accumulate
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_format._read.foreign_files import (
    BlockFile,
    little_endian,
    map_items,
    map_npy,
    read_megatron_index,
)
from roxxel_format._read.line import (
    Line,
    check_range,
    parse_index,
    parse_windows,
    result_dtype,
)
from roxxel_format._read.maps import with_room
from roxxel_format._read.separators import DocumentEnds, items_of, separated
from roxxel_format._read.views import Documents, TokenLine, span_rows
from roxxel_format._spec import dtypes
from roxxel_format._store.corpus_name import absolute
from roxxel_format._store.plain_name import old_shards
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy.typing as npt

    from roxxel_format._read.maps import MappedFile
    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._store.corpus_name import Filepath

__all__ = [
    "DocumentEnds",
    "FlatTokens",
    "MappedTokens",
    "MegatronTokens",
    "Roxxel02Tokens",
]

_SAMPLED_BLOCKS = 1024
_SAMPLE_SIZE = 4096


class MappedTokens:
    """Tokens and documents of mapped files: the base of the other readers.

    Args:
        line: The items of the files, in order.
        documents: Returns the documents; called at their first use.
        key: Bytes that identify the ends of the documents, for the fingerprint.
        tokenizer: Name and hash of the tokenizer, if known.

    Example:
        >>> np.save("flat.npy", np.arange(50))
        >>> isinstance(FlatTokens("flat.npy"), MappedTokens)
        True
    """

    def __init__(
        self,
        line: Line[Any],
        documents: Callable[[], DocumentEnds],
        key: bytes | memoryview,
        tokenizer: str | None,
    ) -> None:
        self._line = line
        self._find_documents = documents
        self._key = key
        self._tokenizer = tokenizer

    @cached_property
    def _documents(self) -> DocumentEnds:
        return self._find_documents()

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self._line)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self._documents.stops.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return self._line.dtype

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer, as passed to the constructor."""
        return self._tokenizer

    @property
    def fingerprint(self) -> str:
        """Hex digest of the sizes, the documents, and 1024 samples of the tokens."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = blake2b(b"roxxel foreign 1", digest_size=16)
        digest.update(f"{self.dtype.str} {self.num_tokens}".encode())
        digest.update(self._key)
        stop = self.num_tokens
        step = max(_SAMPLE_SIZE, stop // _SAMPLED_BLOCKS)
        for start in [*range(0, stop, step), max(0, stop - _SAMPLE_SIZE)]:
            tokens = self._line.range(start, min(start + _SAMPLE_SIZE, stop))
            digest.update(tokens.tobytes())
        return digest.hexdigest()

    @property
    def tokens(self) -> TokenLine:
        """All tokens, in order: `tokens[a:b]`, a read-only view."""
        return TokenLine(self)

    @property
    def documents(self) -> Documents:
        """The documents: `documents[i]`, without their known separators."""
        return Documents(self)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`, a read-only view."""
        check_range(start, stop, self.num_tokens)
        return self._line.range(start, stop)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return `(first token, one past the last token, separator length)`."""
        number = parse_index(document, self.num_documents, "document")
        stops, separators = self._documents
        start = int(stops[number - 1]) if number else 0
        length = separators if isinstance(separators, int) else int(separators[number])
        return start, int(stops[number]), length

    def read(
        self,
        starts: npt.ArrayLike,
        length: int,
        dtype: npt.DTypeLike | None = None,
        out: Tokens | None = None,
    ) -> Tokens:
        """Return the windows of `length` tokens that begin at `starts`.

        Arguments, result and errors are those of `Roxxel.read`. The file does not
        declare a range of tokens, so each read checks that its tokens fit `dtype`.
        """
        begins, length = parse_windows(starts, length, self.num_tokens)
        wanted = result_dtype((len(begins), length), dtype, out, self.dtype)
        name = dtypes.stored_name(self.dtype)
        if dtypes.holds_all(name, wanted):
            return self._line.read(begins, length, wanted, out)

        def check(rows: Tokens) -> None:
            values = None
            if self.dtype.kind in "biu":
                values = (int(rows.min()), int(rows.max())) if rows.size else (0, 0)
            dtypes.check_readable_as(name, values, wanted)

        return self._line.read(begins, length, wanted, out, check)

    def document_spans(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return rows `(document, start, stop)`, clipped to tokens `[start, stop)`."""
        start, stop = as_index(start), as_index(stop)
        check_range(start, stop, self.num_tokens)
        if start == stop:
            return np.empty((0, 3), np.int64)
        stops = self._documents.stops
        low = int(np.searchsorted(stops, start, "right"))
        high = int(np.searchsorted(stops, stop, "left")) + 1
        return span_rows(low, stops[low:high], start, stop)

    def will_need(
        self, starts: npt.ArrayLike, length: int, *, documents: bool = False
    ) -> None:
        """Check that the windows lie inside the corpus; do not prefetch them."""
        del documents
        parse_windows(starts, length, self.num_tokens)


class FlatTokens(MappedTokens):
    """A flat `.npy` or `.bin` file of tokens, read as one document.

    Args:
        path: The file. A `.npy` file holds one flat array.
        dtype: Item type of a file without a header, such as `.bin`. Items are
            little-endian on every machine, unless the dtype is big-endian (`">u2"`).
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ShardError: The file does not hold whole items of a known type.

    Example:
        >>> np.arange(50, dtype=np.uint16).tofile("flat.bin")
        >>> FlatTokens("flat.bin", "uint16").read([0, 30], 3).tolist()
        [[0, 1, 2], [30, 31, 32]]
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
        super().__init__(*_of_one_file(file, tokens), tokenizer)
        self._arguments = str(path.absolute()), dtype

    def __reduce__(self) -> tuple[object, ...]:
        path, dtype = self._arguments
        keywords = {"dtype": dtype, "tokenizer": self._tokenizer}
        return _opened_again, (type(self), path, keywords, self.fingerprint)


class MegatronTokens(MappedTokens):
    """A Megatron `.bin` file with its `.idx`, as written by `indexed_dataset.py`.

    Args:
        path: The `.bin` file, the `.idx` file, or their path without the suffix.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ShardError: The index has an unknown version, or does not match the tokens.

    Example:
        >>> import struct
        >>> np.arange(5, dtype=np.uint16).tofile("text.bin")
        >>> parts = [np.int32([3, 2]), np.int64([0, 6]), np.int64([0, 1, 2])]
        >>> head = b"MMIDIDX" + bytes(2) + struct.pack("<QBQQ", 1, 8, 2, 3)
        >>> index = head + b"".join(part.tobytes() for part in parts)
        >>> with open("text.idx", "wb") as file:
        ...     written = file.write(index)
        >>> MegatronTokens("text").documents[1].tolist()
        [3, 4]
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
                f"{tokens.size}; use files that were written together"
            )
        super().__init__(*_of_one_file(file, tokens, ends), tokenizer)
        self._path = str(stem.absolute())

    def __reduce__(self) -> tuple[object, ...]:
        keywords = {"tokenizer": self._tokenizer}
        return _opened_again, (type(self), self._path, keywords, self.fingerprint)


class Roxxel02Tokens(MappedTokens):
    """Shards of the first Roxxel, which end with `ROXXEL02` or `ROXXEL01`.

    The shards hold items in blocks, and do not record where documents end. All items
    are read as tokens, including the zeros or separators that pad the last block of
    each write.

    Args:
        filepath: A shard, a folder, a glob pattern, or a list of these. The shards are
            read in natural order of their names.
        dtype: Item type. Default: the type that the shards record; shards of `ROXXEL01`
            record no type. Items are little-endian, unless the dtype is big-endian
            (`">u2"`).
        separator: The token or the bytes that the writer appended to each document. The
            writer also padded blocks with separators, and may have cut off the last
            one. So a document ends after one or more separators in a row. The first use
            of the documents searches all tokens. Default: all tokens are one document.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: A file is damaged or has another format, the shards hold items of
            different types, or a read finds a negative integer.
        ValueError: `separator` is not a whole number of items.

    Example:
        >>> tokens = np.array([5, 6, 0, 7, 0], np.int32)
        >>> foot = np.array([20, 1, 20], np.int64).tobytes() + b"int32"
        >>> with open("old_0000.rox", "wb") as file:
        ...     written = file.write(tokens.tobytes() + foot + bytes(3) + b"ROXXEL02")
        >>> old = Roxxel02Tokens("old_*.rox", separator=0)
        >>> [document.tolist() for document in old.documents]
        [[5, 6], [7]]
    """

    def __init__(
        self,
        filepath: Filepath,
        dtype: npt.DTypeLike | None = None,
        *,
        separator: int | bytes | None = None,
        tokenizer: str | None = None,
    ) -> None:
        filepath = absolute(filepath)
        named = (filepath,) if isinstance(filepath, str) else filepath
        paths = [path for each in named for path in old_shards(each)]
        if not paths:
            raise FileNotFoundError("the list of shards is empty; pass at least one")

        def opened(path: str) -> BlockFile:
            return with_room(lambda: BlockFile(path, dtype))

        identities = [opened(path).identity for path in paths]
        stored = identities[0].dtype
        for path, identity in zip(paths, identities, strict=True):
            if identity.dtype != stored:
                raise ShardError(
                    f"{path}: holds {identity.dtype}, but {paths[0]} holds {stored}; "
                    "open them as two corpora, or pass dtype"
                )
        end = None if separator is None else items_of(separator, stored)

        def again(number: int) -> BlockFile:
            file = opened(paths[number])
            if file.identity != identities[number]:
                raise ShardError(
                    f"{paths[number]}: the file was replaced after it was opened; open "
                    "the corpus again"
                )
            return file

        sizes = [identity.num_items for identity in identities]
        bounds = list(accumulate(sizes, initial=0))
        line = Line(bounds, stored, again, BlockFile.piece, None)

        def documents() -> DocumentEnds:
            if end is None:
                return DocumentEnds(np.array([len(line)], np.int64))
            return separated(line, bounds, end)

        super().__init__(
            line, documents, b"" if end is None else end.tobytes(), tokenizer
        )
        self._arguments = filepath, dtype, separator

    def __reduce__(self) -> tuple[object, ...]:
        filepath, dtype, separator = self._arguments
        keywords = {
            "dtype": dtype,
            "separator": separator,
            "tokenizer": self._tokenizer,
        }
        return _opened_again, (type(self), filepath, keywords, self.fingerprint)


def _of_one_file(
    file: MappedFile, tokens: Tokens, stops: npt.NDArray[np.int64] | None = None
) -> tuple[Line[MappedFile], Callable[[], DocumentEnds], memoryview]:
    """Return line, documents and key of a file; one document if `stops` is None."""

    def piece(opened: MappedFile) -> Tokens:
        opened.check_size()
        return tokens

    if stops is None:
        stops = np.array([tokens.size], np.int64)
    line = Line((0, tokens.size), tokens.dtype, lambda _: file, piece, 1)
    return line, lambda: DocumentEnds(stops), stops.data


def _opened_again(
    kind: Callable[..., MappedTokens],
    path: str | tuple[str, ...],
    keywords: dict[str, Any],
    fingerprint: str,
) -> MappedTokens:
    """Unpickle a reader; raise ShardError if its files hold other tokens now."""
    reader = kind(path, **keywords)
    if reader.fingerprint != fingerprint:
        raise ShardError(
            f"{path}: the corpus was replaced: its fingerprint is "
            f"{reader.fingerprint}, but the pickled reader's was {fingerprint}; open "
            "it again"
        )
    return reader
