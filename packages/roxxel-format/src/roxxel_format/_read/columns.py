"""Read columns: one value for each token or document of a corpus.

The manifest lists a column file for each shard. The file is an array without a header,
with an item for each token or for each document of the shard.
"""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from itertools import pairwise
from operator import index as as_index
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from roxxel_format._read.files import ItemReads, MappedFile
from roxxel_format._read.line import (
    Line,
    items_at,
    parse_windows,
    result_dtype,
)
from roxxel_format._read.remote import run_later
from roxxel_format._spec.layout import column_dtype
from roxxel_format._spec.manifest import DIGEST_SIZE, unit_of
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    import numpy.typing as npt

    from roxxel_format._read.contents import Contents
    from roxxel_format._read.files import OpenFile, Piece
    from roxxel_format._spec.layout import Tokens
    from roxxel_format._spec.manifest import ColumnTable

END_SIZE = 8
"""Bytes of the end of a text in the file of a column of texts, see `TextPacker`."""
_CHUNK_BYTES = 1 << 22
_FIND_ITEMS = 1 << 16


class Column:
    """A value for each token or document of a corpus; see `Roxxel.column`.

    The first read of a file opens it and verifies its digest.
    """

    def __init__(self, name: str, contents: Contents) -> None:
        table = _table_of(name, contents)
        self._name = name
        self._table = table
        self._what = f"item of column {name!r}"
        files = ColumnFiles(name, contents)
        bounds = contents.bounds if table.per == "token" else contents.first_documents
        self._line = Line(bounds, files.dtype, files.open, files.items)
        self._is_remote = contents.files.is_remote
        self._digest = partial(contents.column_digest, name)

    @property
    def name(self) -> str:
        """Name of the column."""
        return self._name

    @property
    def per(self) -> str:
        """What each value belongs to: `"token"` or `"document"`."""
        return self._table.per

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a value, little-endian; object for texts, which are `str`."""
        return self._line.dtype

    @property
    def digest(self) -> str:
        """Hex digest of all values, 64 digits, computed from the manifest's digests."""
        return self._digest()

    def __len__(self) -> int:
        """Return the number of values: the corpus's tokens or documents."""
        return len(self._line)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Tokens: ...
    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        """Return the values that an index or a slice selects, as for a list.

        A slice inside one shard is a read-only view of the file; other slices are
        copies.
        """
        return items_at(key, len(self), self._line.range, self._what)

    def find(self, value: object) -> list[int]:
        """Return the indices of the items that equal a value, in order.

        Reads the whole column. For a column of texts or bytes, `value` is a `str`.
        """
        wanted = str(value)
        found: list[int] = []
        for first in range(0, len(self), _FIND_ITEMS):
            items = self[first : first + _FIND_ITEMS].tolist()
            found += [
                at for at, item in enumerate(items, first) if item_text(item) == wanted
            ]
        return found

    def read(
        self, starts: npt.ArrayLike, length: int, out: Tokens | None = None
    ) -> Tokens:
        """Return the windows of `length` values that begin at `starts`.

        Only for columns per token. The caller owns the result, shape `(n, length)`. The
        method fills and returns `out`, which must have this shape and the column's
        dtype.
        """
        if self.per != "token":
            raise TypeError(
                f"column {self._name!r} is per document and has no windows; use "
                "column[a:b]"
            )
        begins, length = parse_windows(starts, as_index(length), len(self))
        dtype = result_dtype((len(begins), length), self.dtype, out, self.dtype)
        if self._is_remote:
            self._request(begins, length, is_urgent=True)
        return self._line.read(begins, length, dtype, out)

    def will_need(self, starts: npt.ArrayLike, length: int) -> None:
        """Request the windows from a bucket, in the background.

        On a disk this does nothing: the first read of a file reads the whole file, to
        verify its digest. Texts are not requested either, because their offsets are not
        known in advance.

        Args:
            starts: Index of the first value of each window; integers, shape `(n,)`.
            length: Values of each window.

        Raises:
            IndexError: A window leaves the column.
        """
        begins, length = parse_windows(starts, as_index(length), len(self))
        if self._is_remote and self.dtype.kind != "O":
            run_later(lambda: self._request(begins, length, is_urgent=False))

    def _request(self, starts: list[int], length: int, *, is_urgent: bool) -> None:
        """Request window by window: a read uses only a request of exactly its bytes."""
        size = self.dtype.itemsize
        for first in starts:
            for number, start, stop in self._line.parts(first, first + length):
                file = self._line.file(number)
                file.will_need(start * size, stop * size, is_urgent=is_urgent)

    def release(self) -> None:
        """Release all maps; the next read opens the files again."""
        self._line.release()

    def __repr__(self) -> str:
        return f"<column {self._name!r} of {len(self)} {self.dtype} per {self.per}>"


class ColumnFiles:
    """The files of a column; `num_items` are the values in each.

    A file on a disk is verified when it is first opened. A file in a bucket is read by
    ranges, so only `verify` compares it with its digest.
    """

    def __init__(self, name: str, contents: Contents) -> None:
        table = contents.columns[name]
        self.dtype = _parse_dtype(name, table, contents)
        self._table = table
        shards = contents.shards
        self.num_items = shards.num_tokens
        if table.per == "document":
            self.num_items = shards.without_padding(unit_of(contents.bins))
        self._files = contents.files
        self._folder = contents.folder
        self._verified: dict[int, tuple[int, ...]] = {}
        self._counts: dict[str, int] = {}

    def items(self, file: OpenFile) -> Piece:
        """Return all items of an open file: a view of its map, or ranges to fetch."""
        file.check_size()
        if self.dtype.kind == "O":
            return ItemReads(partial(_texts, file, self._counts[file.path]))
        size = self.dtype.itemsize
        if file.is_mapped:
            return file.array(self.dtype, file.num_bytes // size, 0)
        return ItemReads(
            lambda start, stop: file.array(self.dtype, stop - start, start * size)
        )

    def open(self, number: int, *, is_verified: bool = False) -> OpenFile:
        """Open a file; raise ShardError if its size or digest is wrong.

        `is_verified` says whether to compare a bucket file's digest too.
        """
        path = f"{self._folder}{self._table.names[number]}"
        count = self.num_items[number]
        file = self._files.open_listed(path, self._table.num_bytes[number])
        self._counts[file.path] = count
        num_bytes = self._table.num_bytes[number]
        is_text = self.dtype.kind == "O"
        needed = count * (END_SIZE if is_text else self.dtype.itemsize)
        fits = num_bytes >= needed if is_text else num_bytes == needed
        if file.num_bytes != num_bytes or not fits:
            raise ShardError(
                f"{path}: has {file.num_bytes} bytes, but {count} values of "
                f"{self._table.dtype} need {needed}{' or more' * is_text} and the "
                f"manifest lists {num_bytes}; restore the file, or write the column "
                "again"
            )
        if isinstance(file, MappedFile):
            # Skip the digest of a verified file that was closed to save descriptors.
            status = file.status
            identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if self._verified.get(number) != identity:
                self._check_digest(number, file)
                self._verified[number] = identity
        elif is_verified:
            self._check_digest(number, file)
        return file

    def _check_digest(self, number: int, file: OpenFile) -> None:
        if digest_of(file) != self._table.digests[number]:
            raise ShardError(
                f"{file.path}: does not match its digest in the manifest; the file was "
                "damaged or replaced, so restore it, or write the column again"
            )


def digest_of(file: OpenFile) -> str:
    """Return the digest of a file of a column, as a manifest lists it."""
    digest = blake2b(digest_size=DIGEST_SIZE)
    for start in range(0, file.num_bytes, _CHUNK_BYTES):
        digest.update(file.read(start, min(start + _CHUNK_BYTES, file.num_bytes)))
    return digest.hexdigest()


def _texts(file: OpenFile, count: int, start: int, stop: int) -> Tokens:
    """Return the texts `[start, stop)` of a file that holds `count` texts."""
    size = file.num_bytes - count * END_SIZE
    first = max(start - 1, 0)
    ends = file.array(np.dtype("<u8"), stop - first, size + first * END_SIZE)
    if not _are_ends(ends, size):
        raise _bad_texts(file, "the ends of its texts do not rise")
    limits = [0, *ends.tolist()] if start == 0 else ends.tolist()
    data = file.read(limits[0], limits[-1])
    items = np.empty(stop - start, object)
    for at, (low, high) in enumerate(pairwise(limits)):
        try:
            items[at] = data[low - limits[0] : high - limits[0]].decode()
        except UnicodeDecodeError as error:
            raise _bad_texts(file, f"text {start + at} is not UTF-8") from error
    return items


def _are_ends(ends: npt.NDArray[np.uint64], size: int) -> bool:
    """Return whether the ends ascend and are at most `size`."""
    return bool((ends[1:] >= ends[:-1]).all()) and int(ends.max(initial=0)) <= size


def _bad_texts(file: OpenFile, problem: str) -> ShardError:
    return ShardError(
        f"{file.path}: {problem}; the file is damaged or not a column of texts, so "
        "restore it, or write the column again"
    )


def item_text(item: object) -> str:
    """Return an item of a column as text."""
    return item.decode(errors="replace") if isinstance(item, bytes) else str(item)


def damage_of_column(name: str, contents: Contents) -> list[ShardError]:
    """Return an error for each file of a column that is missing or damaged."""
    table = contents.columns[name]
    errors: list[ShardError] = []
    try:
        files = ColumnFiles(name, contents)
    except ShardError as error:
        return [error.with_traceback(None)]
    for number, file_name in enumerate(table.names):
        if file_name is not None:
            try:
                files.open(number, is_verified=True)
            except ShardError as error:
                # A traceback would keep the file open.
                errors.append(error.with_traceback(None))
    return errors


def _table_of(name: str, contents: Contents) -> ColumnTable:
    """Return a column of the manifest; raise ShardError if a shard lacks the column."""
    columns = contents.columns
    if name not in columns:
        known = ", ".join(map(repr, columns)) or "none"
        raise ShardError(
            f"{contents.filepath}: has no column {name!r}, its columns are: {known}; "
            "write the column, or open the corpus by its pattern or folder"
        )
    table = columns[name]
    for path, file_name in zip(contents.paths, table.names, strict=True):
        if file_name is None:
            raise ShardError(
                f"{path}: the shard has no column {name!r}; append it with "
                'write_column(..., exist="append"), or open an earlier version of the '
                "corpus"
            )
    return table


def _parse_dtype(name: str, table: ColumnTable, contents: Contents) -> np.dtype[Any]:
    dtype = column_dtype(table.dtype)
    if dtype is None:
        raise ShardError(
            f"{contents.filepath}: column {name!r} has dtype {table.dtype!r:.100}, "
            "which this reader does not support; install a newer roxxel-format"
        )
    return dtype
