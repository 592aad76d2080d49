"""Read corpora of other formats in place, each as a `TokenReader`.

The readers map flat `.bin` and `.npy` files (nanoGPT, llm.c, OLMo), Megatron's `.bin`
with its `.idx`, and `.ds` files of datatrove. So a curriculum can read an existing
corpus without tokenizing again. `open_foreign` opens any of them by plain values, and
`roxxel-format copy` turns any of them into shards. These formats have no checksums, so
readers cannot detect damaged tokens, and a fingerprint covers only a sample of the
tokens. An unpickled reader opens its files by path, and raises an error if their
fingerprint changed.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from roxxel_store.arguments import as_integer
from roxxel_store.files import matches_of, read_file
from roxxel_store.urls import absolute, is_pattern

from roxxel_format._read.foreign_files import (
    parse_datatrove,
    parse_npy_header,
    read_megatron_index,
)
from roxxel_format._read.item_files import (
    check_width,
    find_items,
    line_of,
    paths_of,
)
from roxxel_format._read.line import (
    Line,
    check_range,
    check_readable_as,
    holds_all,
    parse_index,
    parse_windows,
    result_dtype,
)
from roxxel_format._spec.layout import stored_name
from roxxel_format.errors import ShardError
from roxxel_format.token_reader import TokenReader, sampled_fingerprint

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    import numpy.typing as npt

    from roxxel_format._corpus_name import Filepath
    from roxxel_format._read.item_files import Items
    from roxxel_format._spec.layout import Tokens

__all__ = [
    "DatatroveTokens",
    "DocumentEnds",
    "FlatTokens",
    "ForeignFormat",
    "MappedTokens",
    "MegatronTokens",
    "foreign_format",
    "open_foreign",
    "parse_datatrove",
    "parse_npy_header",
]

ForeignFormat = Literal["flat", "megatron", "datatrove"]
"""The formats that `open_foreign` reads."""

_MAX_INDEX_SIZE = 1 << 34
_SEARCHED_ITEMS = 1 << 22
_MEGATRON_ENDS = ("_document", "_sentence")
"""What Megatron's `preprocess_data.py` adds to the name of its output."""


class MappedTokens(TokenReader):
    """Tokens and documents of mapped files: the base of the other readers.

    Args:
        line: The items of the files, in order.
        stops: One past the last token of each document, rising. None if the files do
            not record documents: all tokens are one document, unless `separator` ends
            each.
        separator: The token that ends each document, if known.
        tokenizer: Name and hash of the tokenizer, if known.
        filepath: The path or paths with which a pickle opens the files again.
        keywords: Further arguments for it.

    Example:
        >>> np.save("flat.npy", np.arange(50))
        >>> isinstance(FlatTokens("flat.npy"), MappedTokens)
        True
    """

    def __init__(
        self,
        line: Line[Any],
        stops: npt.NDArray[np.int64] | None,
        separator: int | None,
        tokenizer: str | None,
        filepath: Filepath,
        **keywords: Any,
    ) -> None:
        if not isinstance(cast("object", tokenizer), str | None):
            raise TypeError(
                f"tokenizer is a {type(tokenizer).__name__}; pass its name and hash as "
                "a text"
            )
        self._line = line
        self._stops = stops
        self._separator = separator
        self._token = None if separator is None else _items_of(separator, line.dtype)
        self._tokenizer = tokenizer
        self._path = absolute(filepath)
        self._keywords = keywords

    def __repr__(self) -> str:
        what = f"{self.num_tokens:,} tokens of {self.dtype}"
        return f"{type(self).__name__}({_shown(self._path)}, {what})"

    def __reduce__(self) -> tuple[object, ...]:
        keywords = {
            **self._keywords,
            "separator": self._separator,
            "tokenizer": self._tokenizer,
        }
        return _opened_again, (type(self), self._path, keywords, self.fingerprint)

    @cached_property
    def _documents(self) -> DocumentEnds:
        if self._token is None:
            return DocumentEnds(self._known_stops)
        if self._stops is None:
            return _ended(self._line, self._token)
        return _with_separator(self._line, self._stops, self._token)

    @property
    def _known_stops(self) -> npt.NDArray[np.int64]:
        if self._stops is None:
            return np.array([self.num_tokens], np.int64)
        return self._stops

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self._line)

    @property
    def _document_ends(self) -> npt.NDArray[np.int64]:
        return self._documents.stops

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a stored token."""
        return self._line.dtype

    @property
    def tokenizer(self) -> str | None:
        """Name and hash of the tokenizer, as passed to the constructor."""
        return self._tokenizer

    @property
    def separator(self) -> tuple[int, ...]:
        """The token that ends each document; empty if none is known."""
        return () if self._separator is None else (int(self._separator),)

    @cached_property
    def _sampled_fingerprint(self) -> str:
        token = b"" if self._token is None else self._token.tobytes()
        return sampled_fingerprint(self, self._known_stops.tobytes() + token)

    def token_range(self, start: int, stop: int) -> Tokens:
        """Return tokens `[start, stop)`, a read-only view."""
        check_range(start, stop, self.num_tokens)
        return self._line.range(start, stop)

    def document_range(self, document: int) -> tuple[int, int, int]:
        """Return the range of a document; a separator counts only if it is there."""
        number = parse_index(document, self.num_documents, "document")
        start, stop, _ = super().document_range(number)
        separators = self._documents.separators
        length = separators if isinstance(separators, int) else int(separators[number])
        return start, stop, length

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
        name = stored_name(self.dtype)
        if holds_all(name, wanted):
            return self._line.read(begins, length, wanted, out)
        stored = self._line.read(begins, length, self.dtype)
        values = None
        if self.dtype.kind in "biu":
            values = (int(stored.min()), int(stored.max())) if stored.size else (0, 0)
        check_readable_as(name, values, wanted)
        tokens = np.empty(stored.shape, wanted) if out is None else out
        tokens[...] = stored
        return tokens


class FlatTokens(MappedTokens):
    """Flat files of tokens: raw `.bin`, `.npy`, or with the header of llm.c.

    nanoGPT writes raw `.bin`, OLMo raw tokens with the ending `.npy`, llm.c a header of
    1024 bytes before the tokens. The first bytes of a file say which it is, so you name
    only the type of raw tokens. The header of llm.c has a count but no type: the file's
    size decides between uint16 and uint32.

    Args:
        filepath: A file, a glob pattern, or a list of these. The files of a pattern are
            read in natural order of their names, as one line of tokens.
        dtype: Item type of a file without a header. Items are little-endian on every
            machine, unless the dtype is big-endian (`">u2"`). Another width is an error
            if the first 4096 tokens show it. They do not show two tokens of one byte
            that are read as one of two bytes.
        offset: Bytes before the first token of each file. Default: the size of a header
            of `.npy` or llm.c, else 0.
        separator: The token that ends each document. The first use of the documents
            searches all tokens. Default: all tokens are one document.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        FileNotFoundError: There is no such file.
        ShardError: A file does not hold whole items of a known type, or two files hold
            items of different types.
        ValueError: A file needs `dtype`; or its items seem to have another width, for
            example because every second token is 0; or `separator` is no value of
            `dtype`.

    Example:
        >>> np.array([5, 6, 0, 7, 0], np.uint16).tofile("flat.bin")
        >>> flat = FlatTokens("flat.bin", "uint16", separator=0)
        >>> flat.read([0, 2], 3).tolist()
        [[5, 6, 0], [0, 7, 0]]
        >>> [document.tolist() for document in flat.documents]
        [[5, 6], [7]]
    """

    def __init__(
        self,
        filepath: Filepath,
        dtype: npt.DTypeLike | None = None,
        *,
        offset: int | None = None,
        separator: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        offset = None if offset is None else as_integer("offset", offset, 0)
        paths = paths_of(filepath, "FlatTokens")
        files = [find_items(path, dtype, offset) for path in paths]
        line = line_of(files)
        for file in files:
            check_width(file, is_raw=file.byte_offset == (offset or 0))
        super().__init__(
            line, None, separator, tokenizer, filepath, dtype=dtype, offset=offset
        )


class MegatronTokens(MappedTokens):
    """A Megatron `.bin` file with its `.idx`, as written by `indexed_dataset.py`.

    Args:
        path: The `.bin` file, the `.idx` file, or their path without the suffix.
        separator: The token that ends documents, if one does (`--append-eod`). It then
            counts as the separator, not as part of the document.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        FileNotFoundError: There is no such file, or a file lacks its index.
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
        self,
        path: str | os.PathLike[str],
        *,
        separator: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        named = absolute(cast("Filepath", path))
        if not isinstance(named, str):
            raise TypeError(
                f"{_shown(named)}: Megatron's tokens are read file by file; pass the "
                "path of one .bin file, and make each file a source of its own"
            )
        index_path = _megatron_index(Path(named))
        stem = index_path.with_suffix("")
        if not index_path.exists():
            raise FileNotFoundError(
                f"{index_path}: there is no such index of Megatron's; pass the path of "
                "one .bin file with its .idx beside it, or format='flat' if these "
                "tokens have none"
            )
        dtype, ends = read_megatron_index(index_path)
        items = find_items(str(stem.with_name(stem.name + ".bin")), dtype, 0)
        last = int(ends[-1]) if ends.size else 0
        if last != items.num_items:
            raise ShardError(
                f"{index_path}: describes {last} tokens, but the .bin file holds "
                f"{items.num_items}; use files that were written together"
            )
        super().__init__(line_of([items]), ends, separator, tokenizer, stem)


class DatatroveTokens(MappedTokens):
    """The `.ds` files of datatrove with their `.ds.index`, documents included.

    Args:
        filepath: A `.ds` file, a glob pattern, or a list of these. The files of a
            pattern are read in natural order of their names.
        separator: The token that ends documents, if one does. It then counts as the
            separator, not as part of the document.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        FileNotFoundError: There is no such file, or a file lacks its index.
        ShardError: An index is damaged, or does not match its tokens.

    Example:
        >>> np.array([5, 6, 0, 7, 0], np.uint16).tofile("text.ds")
        >>> np.array([3, 5]).tofile("text.ds.index")
        >>> trove = DatatroveTokens("text.ds", separator=0)
        >>> [document.tolist() for document in trove.documents]
        [[5, 6], [7]]
    """

    def __init__(
        self,
        filepath: Filepath,
        *,
        separator: int | None = None,
        tokenizer: str | None = None,
    ) -> None:
        items: list[Items] = []
        stops: list[npt.NDArray[np.int64]] = []
        at = 0
        for path in paths_of(filepath, "DatatroveTokens"):
            index = path + ".index"
            data = read_file(index, _MAX_INDEX_SIZE, ShardError)
            dtype, ends = parse_datatrove(path, Path(path).stat().st_size, data)
            items.append(find_items(path, dtype, 0))
            stops.append(ends + at)
            at += items[-1].num_items
        ends = np.concatenate(stops)
        super().__init__(line_of(items), ends, separator, tokenizer, filepath)


class DocumentEnds(NamedTuple):
    """Where documents end, in the tokens of all shards in order.

    `stops` ascend; the last equals the number of tokens. `separators` are the numbers
    of separator tokens at the end of each document: an array of the same shape, or 0
    for all.

    Example:
        >>> DocumentEnds(np.array([3, 5])).stops.tolist()
        [3, 5]
    """

    stops: npt.NDArray[np.int64]
    separators: npt.NDArray[np.int64] | int = 0


def foreign_format(filepath: Filepath) -> ForeignFormat | None:
    """Return the format of a corpus of another program; None if it is unknown.

    `open_foreign` reads these formats: `"flat"`, `"megatron"` and `"datatrove"`. The
    names decide: a `.bin` next to an `.idx`, or with a name of Megatron's form
    (`*_document.bin`), is Megatron's.

    Example:
        >>> foreign_format("train_*.bin"), foreign_format("wiki_*.rox")
        ('flat', None)
    """
    named = absolute(filepath)
    first = named if isinstance(named, str) else (*named, "")[0]
    path = Path(first)
    if _is_megatron(path):
        return "megatron"
    if path.suffix in {".bin", ".npy"}:
        return "flat"
    if path.suffix == ".ds":
        return "datatrove"
    return None


def _is_megatron(path: Path) -> bool:
    """Return whether a path has an index, or a name that Megatron's writer gives."""
    index = _megatron_index(path)
    if path == index or (path.suffix == ".bin" and path.stem.endswith(_MEGATRON_ENDS)):
        return True
    if is_pattern(str(index)):
        return bool(matches_of(str(index))[1])
    return index.exists()


def open_foreign(
    filepath: Filepath,
    format: ForeignFormat | None = None,  # noqa: A002 - the name of the command's option
    *,
    dtype: npt.DTypeLike | None = None,
    offset: int | None = None,
    separator: int | None = None,
    tokenizer: str | None = None,
) -> MappedTokens:
    """Open a corpus of another format by plain values, such as those of a TOML table.

    Args:
        filepath: As for the reader of the format.
        format: `"flat"` (nanoGPT, llm.c, OLMo), `"megatron"` or `"datatrove"`. Default:
            `foreign_format` of the path.
        dtype: As for `FlatTokens`.
        offset: As for `FlatTokens`.
        separator: The token that ends documents.
        tokenizer: Name and hash of the tokenizer, if it is known.

    Raises:
        ValueError: The format is unknown, or has no such argument.

    Example:
        >>> np.arange(50, dtype=np.uint16).tofile("flat.bin")
        >>> open_foreign("flat.bin", dtype="uint16").num_tokens
        50
    """
    found = foreign_format(filepath) if format is None else format
    reader = None if found is None else _READERS.get(found)
    if reader is None:
        problem = f"format={format!r} is unknown"
        if format is None:
            problem = "its name and its content are those of no other format"
        raise ValueError(
            f"{_shown(filepath)}: {problem}; pass as format "
            f"{', '.join(map(repr, _READERS))}, or open a corpus of .rox shards with "
            "Roxxel"
        )
    of_flat = {"dtype": dtype, "offset": offset}
    keywords = {name: value for name, value in of_flat.items() if value is not None}
    if keywords and reader is not FlatTokens:
        raise ValueError(
            f"{_shown(filepath)}: {', '.join(keywords)} is no argument of the format "
            f"{found!r}; leave it out, or pass format if it is another"
        )
    return reader(filepath, separator=separator, tokenizer=tokenizer, **keywords)


_READERS: dict[ForeignFormat, Callable[..., MappedTokens]] = {
    "flat": FlatTokens,
    "megatron": MegatronTokens,
    "datatrove": DatatroveTokens,
}


def _shown(filepath: Filepath) -> str:
    """Return the path, or the first of several, for messages."""
    named = absolute(filepath)
    if isinstance(named, str):
        return repr(named)
    more = len(named) - 1
    return f"{named[0]!r} and {more} more" if more else repr(named[0])


def _megatron_index(path: Path) -> Path:
    """Return the path of the `.idx` of a `.bin`, or of their path without a suffix."""
    stem = path.with_suffix("") if path.suffix in {".bin", ".idx"} else path
    return stem.with_name(stem.name + ".idx")


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


def _items_of(separator: float, dtype: np.dtype[Any]) -> Tokens:
    is_bool = isinstance(separator, bool | np.bool_) and dtype.kind != "b"
    if np.ndim(separator) == 0 and not is_bool:
        with contextlib.suppress(OverflowError, TypeError, ValueError):
            items = np.array([separator]).astype(dtype)
            if items[0] == separator:
                return items
    raise ValueError(f"separator={separator!r} is not a value of {dtype}; pass a token")


def _ended(line: Line[Any], token: Tokens) -> DocumentEnds:
    """Find the documents of a line by the token that ends each.

    The last document may lack it. A document may be in several files, so the line is
    searched, not each file.
    """
    found: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(line), _SEARCHED_ITEMS):
        items = line.range(start, min(start + _SEARCHED_ITEMS, len(line)))
        found.append(np.flatnonzero(items == token[0]) + (start + 1))
    stops = np.concatenate([np.empty(0, np.int64), *found])
    if (int(stops[-1]) if stops.size else 0) == len(line) and stops.size:
        return DocumentEnds(stops, 1)
    lengths = np.ones(stops.size + 1, np.int64)
    lengths[-1] = 0
    return DocumentEnds(np.append(stops, len(line)), lengths)


def _with_separator(
    line: Line[Any], stops: npt.NDArray[np.int64], token: Tokens
) -> DocumentEnds:
    """Mark which documents, of known ends, end with the token."""
    starts = np.append(0, stops[:-1])
    lengths = np.zeros(stops.size, np.int64)
    filled = np.flatnonzero(stops > starts)
    for at in range(0, filled.size, _SEARCHED_ITEMS):
        rows = filled[at : at + _SEARCHED_ITEMS]
        last = line.read((stops[rows] - 1).tolist(), 1, line.dtype)[:, 0]
        lengths[rows] = last == token[0]
    return DocumentEnds(stops, 1 if lengths.all() else lengths)
