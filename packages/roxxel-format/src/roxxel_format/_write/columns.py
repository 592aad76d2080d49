"""Write a column: one plain array file beside each shard, then one commit."""

from __future__ import annotations

import contextlib
import re
import secrets
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from roxxel_format._spec import dtypes
from roxxel_format._spec.manifest import ColumnTable
from roxxel_format._store.local import draft_path, sync_file, sync_folder
from roxxel_format._store.locks import writing
from roxxel_format._write.casting import Caster, OutOfRangeError
from roxxel_format._write.commit import Committed, commit, read_committed
from roxxel_format._write.existing import find_manifest
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from roxxel_format._spec.manifest import Manifest, ShardTable
    from roxxel_format._store.corpus_name import CorpusName

_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGEST_SIZE = 32


def write_column(
    name: CorpusName,
    column: str,
    values: Iterable[object],
    per: str,
    dtype: npt.DTypeLike | None,
    *,
    replace_old: bool,
) -> None:
    """Write a column of a corpus; see `Roxxel.write_column`."""
    if not _COLUMN_NAME.fullmatch(column):
        raise ValueError(
            f"{column!r} cannot name a column; use ASCII letters, digits and _"
        )
    if per not in ("token", "document"):
        raise ValueError(f'per must be "token" or "document", got {per!r}')
    if name.manifest is None:
        raise ValueError(
            f"{name.single}: a corpus of one file has no columns; write the corpus to "
            f'a pattern such as "{name.prefix}_*.rox", or to a folder'
        )
    with writing(name):
        found = _committed(name)
        _check_free(name, found.manifest, column, replace_old=replace_old)
        files = _Files(name, column, per, found.manifest.shards)
        try:
            table = files.write_all(*_arrays(values, dtype))
            while not commit(name, found, _with_column(found.manifest, column, table)):
                found = _grown(name, found.manifest)
                _check_free(name, found.manifest, column, replace_old=replace_old)
        except BaseException:
            with contextlib.suppress(OSError, ShardError):
                files.remove_unless(read_committed(name).file_names())
            raise
        old = found.manifest.columns.get(column)
        for each in old.names if old is not None else ():
            if each is not None:
                with contextlib.suppress(OSError):
                    (name.folder / each).unlink()


class _Files:
    """The files of one column, one for each shard.

    Args:
        name: The corpus.
        column: Name of the column.
        per: `"token"` or `"document"`.
        shards: Shards of the corpus.
    """

    def __init__(
        self, name: CorpusName, column: str, per: str, shards: ShardTable
    ) -> None:
        self._what = f"column {column!r} per {per}"
        self._per = per
        self._counts = shards.num_tokens if per == "token" else shards.own_documents()
        unique = secrets.token_hex(4)
        self._paths = [name.column(shard, column, unique) for shard in shards.names]

    def write_all(self, arrays: Iterator[Any], dtype: np.dtype[Any]) -> ColumnTable:
        """Write arrays one after the other; return the column's manifest entry.

        Raises:
            ValueError: They hold more or fewer items than the shards, or a value is out
                of range.
        """
        rest = np.empty(0, dtype)
        sizes: list[int] = []
        digests: list[str] = []
        num_written = 0
        for path, count in zip(self._paths, self._counts, strict=True):
            digest = blake2b(digest_size=_DIGEST_SIZE)
            missing = count
            draft = draft_path(path)
            with draft.open("xb") as file:
                while missing:
                    if not rest.size:
                        values = next(arrays, None)
                        if values is None:
                            raise self._wrong_number(f"only {num_written}")
                        rest = _cast(values, dtype, num_written)
                    part = rest[:missing]
                    rest = rest[missing:]
                    digest.update(part.view(np.uint8).data)
                    file.write(part.view(np.uint8).data)
                    missing -= part.size
                    num_written += part.size
                file.flush()
                sync_file(file.fileno())
            draft.replace(path)
            sizes.append(count * dtype.itemsize)
            digests.append(digest.hexdigest())
        if rest.size or any(values.size for values in arrays):
            raise self._wrong_number("more")
        for folder in {path.parent for path in self._paths}:
            sync_folder(folder)
        names = [path.name for path in self._paths]
        return ColumnTable(self._per, _name_of(dtype), names, sizes, digests)

    def remove_unless(self, listed: set[str]) -> None:
        """Remove the files that a manifest does not list."""
        for path in self._paths:
            if path.name not in listed:
                path.unlink(missing_ok=True)
                draft_path(path).unlink(missing_ok=True)

    def _wrong_number(self, given: str) -> ValueError:
        return ValueError(
            f"{self._what}: the corpus has {sum(self._counts)} {self._per}s, but there "
            f"are {given} values; pass one for each {self._per}"
        )


def _committed(name: CorpusName) -> Committed:
    found = find_manifest(name, "append")
    if found.manifest.versions:
        return found
    if found.data is None:
        raise FileNotFoundError(
            f"{name.pattern}: no such corpus, so no column can be written; write the "
            "corpus first, or check the path"
        )
    raise ShardError(
        f"{name.pattern}: no version is committed; the first write is still in "
        "progress or was interrupted, so wait for it, or write the corpus again"
    )


def _check_free(
    name: CorpusName, manifest: Manifest, column: str, *, replace_old: bool
) -> None:
    if column in manifest.columns and not replace_old:
        raise FileExistsError(
            f"{name.pattern}: the column {column!r} exists already; use "
            'exist="replace", or another name'
        )


def _grown(name: CorpusName, before: Manifest) -> Committed:
    """Return the manifest that another write committed, if that only appended."""
    found = read_committed(name)
    if found.manifest.shards.first(len(before.shards)) != before.shards:
        raise ShardError(
            f"{name.pattern}: the corpus was replaced while its column was written; "
            "write the column again"
        )
    return found


def _with_column(manifest: Manifest, column: str, table: ColumnTable) -> Manifest:
    num_later = len(manifest.shards) - len(table.names)
    columns = {**manifest.columns, column: table.followed_by(num_later)}
    return replace(manifest, columns=columns)


def _arrays(
    values: Iterable[object], dtype: npt.DTypeLike | None
) -> tuple[Iterator[Any], np.dtype[Any]]:
    """Return flat arrays of values, and the dtype to store them in.

    Raises:
        TypeError: The dtype cannot be stored, or must be given.
        ValueError: An array is not flat.
    """
    is_whole = isinstance(values, np.ndarray)
    if isinstance(values, list | tuple):
        is_whole = not isinstance(next(iter(values), None), np.ndarray | list | tuple)
    parts = [cast("object", values)] if is_whole else values
    arrays = map(_flat, parts)
    first = next((each for each in arrays if each.size), np.empty(0, np.uint8))
    if dtype is not None:
        stored = np.dtype(dtype)
        if stored.kind != "S":
            stored = dtypes.stored_dtype(dtypes.stored_name(stored))
    elif first.dtype.kind in "SU":
        if not is_whole:
            raise TypeError(
                "strings of an iterable have no common width; pass dtype, such as "
                '"S36" for up to 36 bytes of UTF-8'
            )
        stored = _encoded(first).dtype
    else:
        stored = dtypes.stored_dtype(dtypes.stored_name(first.dtype))
    if not stored.itemsize:
        raise TypeError(f'dtype {stored} has no width; pass one such as "S36"')
    return chain([first], arrays), stored


def _flat(values: object) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(
            f"values have shape {array.shape}; pass flat arrays, one item for each "
            "token or document"
        )
    return array


def _encoded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return strings as UTF-8."""
    return np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values


def _cast(
    values: np.ndarray[Any, Any], dtype: np.dtype[Any], first: int
) -> np.ndarray[Any, Any]:
    """Return values as the dtype stores them, contiguous.

    Args:
        values: Shape `(n,)`.
        dtype: Item type of the column.
        first: Index of the first value, for errors.

    Raises:
        TypeError: The values are of a kind that the dtype cannot store.
        ValueError: A value is out of range, or a string too long.
    """
    if values.dtype.kind not in ("SU" if dtype.kind == "S" else "biuf"):
        raise TypeError(f"values of dtype {values.dtype} cannot be stored as {dtype}")
    if dtype.kind == "S":
        encoded = _encoded(values)
        lengths = np.char.str_len(encoded)
        if lengths.max(initial=0) > dtype.itemsize:
            index = int(np.argmax(lengths > dtype.itemsize))
            raise ValueError(
                f"value {first + index} has {lengths[index]} bytes, more than {dtype} "
                "holds; use a wider dtype"
            )
        return np.ascontiguousarray(encoded.astype(dtype))
    caster = Caster(dtypes.stored_name(dtype))
    if dtype.kind in "biu" and values.dtype.kind == "f":
        raise TypeError(f"values of dtype {values.dtype} cannot be stored as {dtype}")
    try:
        return caster.cast(values)
    except OutOfRangeError as error:
        raise ValueError(
            f"value {first + error.index} is {error.value}, outside "
            f"{caster.limits_text}; use a wider dtype"
        ) from None


def _name_of(dtype: np.dtype[Any]) -> str:
    return f"S{dtype.itemsize}" if dtype.kind == "S" else dtypes.stored_name(dtype)
