"""Columns: one value for each token or document of a corpus, in files of their own.

The manifest lists one file for each shard. A file is a plain array: per token, one item
for each token of the shard; per document, one item for each document that begins in the
shard. A file's digest is checked when the file is first used.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from operator import index as as_index
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from roxxel_format._read.line import ArrayPiece, Line, Piece
from roxxel_format._read.mapped_file import MappedFile
from roxxel_format._read.maps import MapCache, register, shared_max_maps
from roxxel_format._read.opening import open_file
from roxxel_format._read.views import items_at
from roxxel_format._read.windows import parse_windows, result_dtype
from roxxel_format._spec import dtypes
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from roxxel_format._read.contents import Contents
    from roxxel_format._spec.dtypes import Tokens
    from roxxel_format._spec.manifest import ColumnTable

_DIGEST_SIZE = 32
_CHUNK_BYTES = 1 << 22
_STRINGS = re.compile(r"S[1-9][0-9]{0,8}")


class Column:
    """One value for each token, or for each document, of a corpus.

    Made by `Roxxel.column`. Files are opened when they are first needed.

    Args:
        name: Name of the column.
        contents: The corpus.

    Raises:
        ShardError: A shard has no such column, or the manifest contradicts itself.
    """

    def __init__(self, name: str, contents: Contents) -> None:
        table = _table_of(name, contents)
        self._name = name
        self._table = table
        self._what = f"item of column {name!r}"
        self._bounds = _bounds_of(table, contents)
        self._files = _ColumnFiles(name, table, contents)
        self._line = Line(
            self._bounds, self._files.dtype, self._files.piece, shared_max_maps
        )
        register(self)

    @property
    def name(self) -> str:
        """Name of the column."""
        return self._name

    @property
    def per(self) -> str:
        """`"token"` or `"document"`: what each value belongs to."""
        return self._table.per

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of a value, little-endian."""
        return self._line.dtype

    @property
    def digest(self) -> str:
        """Hex digest of all values: 64 digits, from the digests in the manifest."""
        digest = blake2b(b"roxxel column 1", digest_size=_DIGEST_SIZE)
        digest.update(f"{self.per} {self._table.dtype}".encode())
        for each in self._table.digests[: len(self._bounds) - 1]:
            digest.update(bytes.fromhex(each))
        return digest.hexdigest()

    def __len__(self) -> int:
        """Return the number of tokens, or of documents, of the corpus."""
        return len(self._line)

    @overload
    def __getitem__(self, key: int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> Tokens: ...
    def __getitem__(self, key: int | slice) -> Any:
        """Return the values at an index or a slice, as a list would.

        A slice in one shard is a read-only view of the file, else a copy.

        Raises:
            IndexError: The index is out of range.
            ShardError: A file of the column is damaged, gone, or was replaced.
        """
        return items_at(key, len(self), self._line.range, self._what)

    def read(
        self, starts: npt.ArrayLike, length: int, out: Tokens | None = None
    ) -> Tokens:
        """Return the windows of `length` values that begin at `starts`.

        Only for columns per token.

        Args:
            starts: First token of each window; integers, shape `(n,)`.
            length: Tokens of each window, at least 0.
            out: Shape `(n, length)` and of the column's dtype; filled and returned.

        Returns:
            Shape `(n, length)`; owned by the caller.

        Raises:
            IndexError: A window leaves the corpus.
            TypeError: The column is per document.
            ValueError: `out` has another shape or dtype.
            ShardError: A file of the column is damaged, gone, or was replaced.
        """
        if self.per != "token":
            raise TypeError(
                f"column {self._name!r} is per document and has no windows; use "
                "column[a:b]"
            )
        begins, length = parse_windows(starts, as_index(length), len(self))
        dtype = result_dtype((len(begins), length), self.dtype, out, self.dtype)
        return self._line.read(begins, length, dtype, out)

    def release(self) -> None:
        """Release all maps; the next read opens the files again."""
        self._line.forget()
        self._files.clear()

    def __repr__(self) -> str:
        return f"<column {self._name!r} of {len(self)} {self.dtype} per {self.per}>"


class _ColumnFiles:
    """The open files of a column."""

    def __init__(self, name: str, table: ColumnTable, contents: Contents) -> None:
        self.dtype = _parse_dtype(name, table, contents)
        self._table = table
        self._bounds = _bounds_of(table, contents)
        self._folder = Path(contents.paths[0]).parent
        self._verified: dict[int, tuple[int, ...]] = {}
        self._files = MapCache(self._open)
        self.clear = self._files.clear

    def piece(self, number: int) -> Piece:
        file = self._files[number]
        file.check_size()
        count = self._bounds[number + 1] - self._bounds[number]
        return ArrayPiece(file.array(self.dtype, count, 0))

    def _open(self, number: int) -> MappedFile:
        """Open a file, and check its size and digest.

        Raises:
            ShardError: The file is gone, or is not the one in the manifest.
        """
        path = str(self._folder / str(self._table.names[number]))
        count = self._bounds[number + 1] - self._bounds[number]
        try:
            fd = open_file(path)
        except FileNotFoundError as error:
            raise ShardError(
                f"{path}: the file of a column is gone; restore it, or write the "
                "column again"
            ) from error
        status = os.fstat(fd)
        num_bytes = self._table.num_bytes[number]
        if status.st_size != num_bytes or num_bytes != count * self.dtype.itemsize:
            os.close(fd)
            raise ShardError(
                f"{path}: has {status.st_size} bytes, but {count} values of "
                f"{self.dtype} need {count * self.dtype.itemsize} and the manifest "
                f"lists {num_bytes}; restore the file, or write the column again"
            )
        file = MappedFile(path, fd, num_bytes)
        # Do not hash a file again that was closed only to save descriptors.
        identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        if self._verified.get(number) != identity:
            self._check_digest(number, file)
            self._verified[number] = identity
        return file

    def _check_digest(self, number: int, file: MappedFile) -> None:
        digest = blake2b(digest_size=_DIGEST_SIZE)
        for start in range(0, file.num_bytes, _CHUNK_BYTES):
            digest.update(file.read(start, min(start + _CHUNK_BYTES, file.num_bytes)))
        if digest.hexdigest() != self._table.digests[number]:
            raise ShardError(
                f"{file.path}: does not match its digest in the manifest; the file was "
                "damaged or replaced, so restore it, or write the column again"
            )


def damage_of_column(name: str, contents: Contents) -> list[ShardError]:
    """Return an error for each file of a column that is missing or damaged."""
    table = contents.columns[name]
    errors: list[ShardError] = []
    try:
        files = _ColumnFiles(name, table, contents)
    except ShardError as error:
        return [error]
    for number in range(len(contents.paths)):
        if table.names[number] is not None:
            try:
                files.piece(number)
            except ShardError as error:
                errors.append(error)
    return errors


def _bounds_of(table: ColumnTable, contents: Contents) -> Sequence[int]:
    """Return the first item of each file, then the number of items."""
    return contents.bounds if table.per == "token" else contents.first_own


def _table_of(name: str, contents: Contents) -> ColumnTable:
    """Return the manifest's entry of a column that every shard has.

    Raises:
        ShardError: There is no such column, or a shard lacks it.
    """
    columns = contents.columns
    if name not in columns:
        known = ", ".join(map(repr, columns)) or "none"
        raise ShardError(
            f"{contents.filepath}: has no column {name!r}, its columns are: {known}; "
            "write it with write_column, and name the corpus by its pattern or folder"
        )
    table = columns[name]
    for path, file_name in zip(contents.paths, table.names, strict=False):
        if file_name is None:
            raise ShardError(
                f"{path}: the shard has no column {name!r}; write the column again, or "
                "open an earlier version of the corpus"
            )
    return table


def _parse_dtype(name: str, table: ColumnTable, contents: Contents) -> np.dtype[Any]:
    if table.dtype in dtypes.NAMES:
        return dtypes.stored_dtype(table.dtype)
    if _STRINGS.fullmatch(table.dtype):
        return np.dtype(table.dtype)
    raise ShardError(
        f"{contents.filepath}: column {name!r} has dtype {table.dtype!r:.100}, which "
        "this reader does not know; install a newer roxxel-format"
    )
