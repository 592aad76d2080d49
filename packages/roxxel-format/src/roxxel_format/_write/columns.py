"""Write a column: one array file beside each shard, then one commit."""

from __future__ import annotations

import secrets
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from roxxel_store.files import sync_folder

from roxxel_format._spec.layout import TEXTS, column_dtype, stored_dtype, stored_name
from roxxel_format._spec.manifest import ColumnTable, unit_of
from roxxel_format._spec.manifest_file import is_column_name
from roxxel_format._write.casting import (
    Caster,
    OutOfRangeError,
    number_array,
)
from roxxel_format._write.new_columns import ColumnOutput, TextPacker
from roxxel_format._write.place import place_of
from roxxel_format.errors import ShardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from roxxel_format._corpus_name import CorpusName
    from roxxel_format._spec.manifest import Manifest

ColumnExist = Literal["error", "replace", "append"]


def write_column(
    name: CorpusName,
    column: str,
    values: Iterable[object],
    per: str,
    dtype: npt.DTypeLike | None,
    exist: ColumnExist,
) -> None:
    """Write a column of a corpus; see `Roxxel.write_column`."""
    if not is_column_name(column):
        raise ValueError(
            f"{column!r} cannot name a column; use ASCII letters, digits and _"
        )
    if per not in ("token", "document"):
        raise ValueError(f'per must be "token" or "document", got {per!r}')
    if exist not in ("error", "replace", "append"):
        raise ValueError(
            f'exist must be "error", "replace" or "append" for a column, got {exist!r}'
        )
    place = place_of(name).as_place("it has no columns")
    if place.existing() is None:
        raise FileNotFoundError(
            f"{name.pattern}: no such corpus, so no column can be written; write the "
            "corpus first, or check the path"
        )
    with place.files.writing():
        place.begin()
        before = found = place.found
        old = before.columns.get(column)
        if old is not None and exist == "error":
            raise FileExistsError(
                f"{name.pattern}: the column {column!r} exists already; use "
                'exist="append" for shards without this column, exist="replace", or '
                "another name"
            )
        if old is not None and exist == "append":
            dtype = _dtype_to_append(name, column, old, per, dtype)
        else:
            old = None
        files = _Files(name, column, per, before, old)
        try:
            table = files.write_all(*_arrays(values, dtype))
            while not place.commit(found.with_column(column, table)):
                place.begin()
                found = place.found
                _check_unchanged(name, before, found, column)
        except BaseException:
            place.discard_unlisted(files.names)
            raise
        kept = found.with_column(column, table).file_names()
        place.discard(found.file_names() - kept)


class _Files:
    """The new files of a column, one for each shard that has no file in `old`."""

    def __init__(
        self,
        name: CorpusName,
        column: str,
        per: str,
        manifest: Manifest,
        old: ColumnTable | None,
    ) -> None:
        shards = manifest.shards
        self._what = f"{name.pattern}: column {column!r} per {per}"
        self._per = per
        wider = "use a wider dtype"
        self._remedy = wider if old is None else f'{wider} with exist="replace"'
        self._old = old or ColumnTable(per, "", (), (), ()).followed_by(len(shards))
        # Indices of the shards that get a file.
        self._numbers = [n for n, each in enumerate(self._old.names) if each is None]
        counts = shards.num_tokens
        if per == "document":
            counts = shards.without_padding(unit_of(manifest.bins))
        self._counts = [counts[number] for number in self._numbers]
        unique = secrets.token_hex(4)
        self._paths = [
            name.column(shards.names[number], column, unique)
            for number in self._numbers
        ]

    def write_all(self, arrays: Iterator[Any], dtype: np.dtype[Any]) -> ColumnTable:
        """Write the values of all arrays, in order; return the column of all shards."""
        rest = np.empty(0, dtype)
        sizes: list[int] = []
        digests: list[str] = []
        num_written = 0
        for path, count in zip(self._paths, self._counts, strict=True):
            missing = count
            packer = TextPacker()
            with ColumnOutput(path) as file:
                while missing:
                    if not rest.size:
                        values = next(arrays, None)
                        if values is None:
                            raise self._wrong_number(f"only {num_written}")
                        rest = _cast(values, dtype, num_written, self._remedy)
                    part = rest[:missing]
                    rest = rest[missing:]
                    file.write(_bytes_of(part, packer))
                    missing -= part.size
                    num_written += part.size
                if dtype.kind == "O":
                    file.write(packer.close())
                size, digest = file.rename()
            sizes.append(size)
            digests.append(digest)
        if rest.size or any(values.size for values in arrays):
            raise self._wrong_number("more")
        for folder in {path.parent for path in self._paths}:
            sync_folder(folder)
        return self._with_files(_name_of(dtype), sizes, digests)

    @property
    def names(self) -> list[str]:
        return [path.name for path in self._paths]

    def _with_files(
        self, dtype: str, sizes: list[int], digests: list[str]
    ) -> ColumnTable:
        names, all_sizes = list(self._old.names), list(self._old.num_bytes)
        all_digests = list(self._old.digests)
        rows = zip(self._numbers, self._paths, sizes, digests, strict=True)
        for number, path, size, digest in rows:
            names[number] = path.name
            all_sizes[number] = size
            all_digests[number] = digest
        return ColumnTable(self._per, dtype, names, all_sizes, all_digests)

    def _wrong_number(self, given: str) -> ValueError:
        if not self._numbers:
            return ValueError(
                f"{self._what}: every shard has this column already; to change its "
                'values, use exist="replace"'
            )
        return ValueError(
            f"{self._what}: the shards without this column have {sum(self._counts)} "
            f"{self._per}s, but there are {given} values; pass one for each {self._per}"
        )


def _dtype_to_append(
    name: CorpusName,
    column: str,
    old: ColumnTable,
    per: str,
    dtype: npt.DTypeLike | None,
) -> np.dtype[Any]:
    """Return the dtype of a column; check `per` and `dtype` against the column."""
    if per != old.per:
        raise ValueError(
            f"{name.pattern}: column {column!r} is per {old.per}, so values per {per} "
            f'cannot be appended; pass per="{old.per}"'
        )
    stored = column_dtype(old.dtype)
    if stored is None:
        raise ShardError(
            f"{name.pattern}: column {column!r} has dtype {old.dtype!r:.100}, which "
            "this writer does not support; install a newer roxxel-format"
        )
    if dtype is not None and _name_of(_stored(dtype)) != old.dtype:
        raise ValueError(
            f"{name.pattern}: column {column!r} holds {old.dtype}, so "
            f"{_name_of(_stored(dtype))} cannot be appended; leave dtype out, or use "
            'exist="replace"'
        )
    return stored


def _check_unchanged(
    name: CorpusName, before: Manifest, now: Manifest, column: str
) -> None:
    """Raise an error if another write replaced the corpus or this column."""
    num_shards = len(before.shards)
    if now.shards.first(num_shards) != before.shards:
        raise ShardError(
            f"{name.pattern}: the corpus was replaced while its column was written; "
            "write the column again"
        )
    old, new = before.columns.get(column), now.columns.get(column)
    if old is not None:
        old = old.followed_by(len(now.shards) - num_shards)
    if old != new:
        raise FileExistsError(
            f"{name.pattern}: another write of the column {column!r} was committed "
            "first, so this write was discarded; write the column again"
        )


def _arrays(
    values: Iterable[object], dtype: npt.DTypeLike | None
) -> tuple[Iterator[Any], np.dtype[Any]]:
    """Return the values as flat arrays, and their stored dtype."""
    is_whole = isinstance(values, np.ndarray)
    if isinstance(values, list | tuple):
        is_whole = not isinstance(next(iter(values), None), np.ndarray | list | tuple)
    parts = [cast("object", values)] if is_whole else values
    wanted = None if dtype is None else _stored(dtype)
    # An empty list has no type, although numpy makes it an array of float64.
    arrays = (_flat(each, wanted) for each in parts if not _is_empty_list(each))
    first: np.ndarray[Any, Any] | None = None
    for first in arrays:
        if first.size:
            break
    if wanted is not None:
        stored = wanted
    elif first is None:
        raise TypeError(
            "there are no values, so nothing says their type; pass dtype, such as "
            '"uint8"'
        )
    elif first.dtype.kind == "T":
        stored = np.dtype(object)
    elif first.dtype.kind in "SU":
        if not is_whole:
            raise TypeError(
                "arrays of strings have no common width; pass dtype, such as "
                '"utf8", or "S36" for up to 36 bytes'
            )
        stored = _encoded(first).dtype
    else:
        stored = stored_dtype(stored_name(first.dtype))
    if not stored.itemsize:
        raise TypeError(f'dtype {stored} has no width; pass a dtype such as "S36"')
    return chain([] if first is None else [first], arrays), stored


def _is_empty_list(values: object) -> bool:
    return isinstance(values, list | tuple) and not values


def _stored(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the little-endian dtype that a column stores for `dtype`."""
    if isinstance(dtype, str) and dtype == TEXTS:
        return np.dtype(object)
    wanted = np.dtype(dtype)
    if wanted.kind == "S":
        return wanted
    if wanted.kind in "TO":  # `StringDType`, or strings as objects
        return np.dtype(object)
    return stored_dtype(stored_name(wanted))


def _flat(values: object, wanted: np.dtype[Any] | None) -> np.ndarray[Any, Any]:
    if wanted is not None and wanted.hasobject and isinstance(values, list | tuple):
        # An array of strings would drop the zeros at the end of each.
        array = np.array(values, object)
    elif isinstance(values, list | tuple):
        items = cast("Sequence[object]", values)
        array = number_array(items)
        if array.dtype.kind in "SU":
            # NumPy turns the numbers among texts into texts.
            for at, each in enumerate(items):
                if not isinstance(each, str | bytes):
                    raise TypeError(
                        f"value {at} is {each!r:.50}, but the column holds texts"
                    )
    else:
        array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(
            f"values have shape {array.shape}; pass flat arrays, one item for each "
            "token or document"
        )
    return array


def _encoded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.char.encode(values, "utf-8") if values.dtype.kind == "U" else values


def _cast(
    values: np.ndarray[Any, Any], dtype: np.dtype[Any], first: int, remedy: str
) -> np.ndarray[Any, Any]:
    """Return contiguous values of `dtype`; `first` is the index of the first value."""
    kinds = {"S": "SU", "O": "SUTO"}.get(dtype.kind, "biuf")
    if values.dtype.kind not in kinds:
        raise TypeError(
            f"values of dtype {values.dtype} cannot be stored as {_name_of(dtype)}"
        )
    if dtype.kind == "O":
        return _as_texts(values, first)
    if dtype.kind == "S":
        encoded = _encoded(values)
        lengths = np.char.str_len(encoded)
        if lengths.max(initial=0) > dtype.itemsize:
            index = int(np.argmax(lengths > dtype.itemsize))
            raise ValueError(
                f"value {first + index} has {lengths[index]} bytes, more than {dtype} "
                f"holds; {remedy}"
            )
        return np.ascontiguousarray(encoded.astype(dtype))
    caster = Caster(stored_name(dtype))
    if dtype.kind in "biu" and values.dtype.kind == "f":
        raise TypeError(f"values of dtype {values.dtype} cannot be stored as {dtype}")
    try:
        return caster.cast(values)
    except OutOfRangeError as error:
        raise ValueError(
            f"value {first + error.index} is {error.value}, outside "
            f"{caster.limits_text}; {remedy}"
        ) from None


def _as_texts(values: np.ndarray[Any, Any], first: int) -> np.ndarray[Any, Any]:
    """Return texts as UTF-8; `first` is the index of the first text."""
    texts = np.empty(values.size, object)
    for at, value in enumerate(values.tolist()):
        if not isinstance(value, str | bytes):
            raise TypeError(
                f"value {first + at} is {value!r:.50}, but the column holds texts"
            )
        texts[at] = value.encode() if isinstance(value, str) else value
    return texts


def _bytes_of(values: np.ndarray[Any, Any], packer: TextPacker) -> Any:
    """Return the bytes that a file stores for values; for texts, only the UTF-8."""
    if values.dtype.kind == "O":
        return packer.add(values.tolist())
    return values.view(np.uint8).data


def _name_of(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "O":
        return TEXTS
    return f"S{dtype.itemsize}" if dtype.kind == "S" else stored_name(dtype)
