"""Read documents from files of text, JSON lines, numpy arrays, Parquet and others."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from roxxel_format import ShardError
from roxxel_format.foreign import parse_npy_header

from roxxel_prepare._inputs.formats import BYTE_ORDER_MARK, text_of
from roxxel_prepare._inputs.input_file import (
    InputError,
    as_seekable,
    library,
    naming_damage,
)
from roxxel_prepare._inputs.row_documents import (
    batch_documents,
    check_columns,
    json_document,
    tried,
)
from roxxel_prepare._inputs.row_texts import (
    array_documents,
    csv_documents,
    tsv_documents,
)
from roxxel_prepare._inputs.tables import record_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_format.writing import Fields

    from roxxel_prepare._inputs.input_record import Span


def documents_of(
    path: str,
    file: BinaryIO,
    form: str,
    fields: Fields,
    span: Span | None,
    *,
    is_given: bool,
) -> Iterator[object]:
    """Yield the documents of an opened file; for a bad one, perhaps an InputError.

    The arguments are those of `documents_in`; `form` is not `ds`, and
    `is_given` says whether the user named it.
    """
    lines = _located_lines(path, file, span)
    rows = (line for _, line in lines)
    match form:
        case "text":
            yield text_of(path, file.read().removeprefix(BYTE_ORDER_MARK))
        case "lines" | "jsonl":
            yield from _line_documents(lines, form, fields)
        case "json":
            yield from array_documents(path, file, fields)
        case "csv":
            yield from csv_documents(path, rows, fields)
        case "tsv":
            yield from tsv_documents(path, rows, fields, may_be_quoted=not is_given)
        case "npy":
            yield from _array_rows(path, file)
        case "parquet":
            yield from _parquet_rows(path, file, fields, span)
        case _:
            yield from _arrow_rows(path, file, fields, span)


def _line_documents(
    lines: Iterator[tuple[str, bytes]], form: str, fields: Fields
) -> Iterator[object]:
    for where, line in lines:
        if form == "lines":
            yield tried(text_of, where, line.rstrip(b"\r\n"))
        elif line.strip():
            yield tried(json_document, where, line, fields)


def _located_lines(
    path: str, file: BinaryIO, span: Span | None
) -> Iterator[tuple[str, bytes]]:
    """Yield lines and locations: line numbers, or byte offsets in a part of a file.

    A byte order mark before the first line is left out.
    """
    if span is None:
        for number, line in enumerate(file, 1):
            text = line if number > 1 else line.removeprefix(BYTE_ORDER_MARK)
            yield f"{path}:{number}", text
        return
    start, stop = span
    if start:  # The line with byte `start - 1` belongs to an earlier part.
        start -= 1
        file.seek(start)
        rest = b" "
        while rest and rest[-1:] != b"\n" and start < stop:
            rest = file.readline(_SKIPPED)
            start += len(rest)
    while start < stop and (line := file.readline()):
        text = line if start else line.removeprefix(BYTE_ORDER_MARK)
        yield f"{path}: line at byte {start}", text
        start += len(line)


def parquet_table(path: str, file: BinaryIO) -> Any:
    """Open a Parquet file; raise InputError if it is damaged."""
    parquet = library("pyarrow.parquet", "parquet", path)
    source = as_seekable(file)
    with naming_damage(partial(_not_parquet, path)):
        return parquet.ParquetFile(source, page_checksum_verification=True)


def _not_parquet(path: str, why: str) -> str:
    return f"{path}: not a Parquet file ({why}); copy it again or make it again"


def _parquet_rows(
    path: str, file: BinaryIO, fields: Fields, span: Span | None
) -> Iterator[object]:
    table = parquet_table(path, file)
    with naming_damage(partial(_not_parquet, path)):
        names = list(table.schema_arrow.names)
    check_columns(path, names, fields)
    groups = range(*span) if span else range(table.metadata.num_row_groups)
    first, stop = (
        sum(table.metadata.row_group(each).num_rows for each in range(end))
        for end in (groups.start, groups.stop)
    )
    row = first
    for batch in _batches(path, table, fields, groups, (first, stop)):
        yield from batch_documents(path, batch, fields, row)
        row += batch.num_rows


def _arrow_rows(
    path: str, file: BinaryIO, fields: Fields, span: Span | None
) -> Iterator[object]:
    row = 0
    for number, batch in enumerate(record_batches(path, file)):
        if span is None or span[0] <= number < span[1]:
            check_columns(path, batch.schema.names, fields)
            yield from batch_documents(path, batch, fields, row)
        row += batch.num_rows


def _batches(
    path: str, table: Any, fields: Fields, groups: range, rows: Span
) -> Iterator[Any]:
    """Yield the columns of documents in some row groups of Parquet, in batches."""
    row, stop = rows

    def damaged(why: str) -> str:
        return (
            f"{path}: damaged at or after row {row} ({why}); copy the file again or "
            "make it again"
        )

    with naming_damage(damaged):
        for group in groups:  # One iterator of all groups would keep their pages.
            for batch in table.iter_batches(
                columns=[*fields.names] or None, batch_size=256, row_groups=[group]
            ):
                yield batch
                row += batch.num_rows
    if row != stop:
        raise InputError(
            f"{path}: has {row} rows, but its footer declares {stop}; copy the file "
            "again or make it again"
        )


def _array_rows(path: str, file: BinaryIO) -> Iterator[object]:
    try:
        dtype, shape, is_fortran = parse_npy_header(path, file.read)
    except ShardError as error:
        raise InputError(str(error)) from None
    if dtype.kind not in "iuf":
        raise InputError(
            f"{path}: holds {dtype}; an array of tokens holds numbers, so convert it"
        )
    if len(shape) not in (1, 2) or shape[1:] == (0,):
        raise InputError(
            f"{path}: has shape {shape}; save a flat array for one document, or a "
            "table with a document in each row"
        )
    data = _npy_data(path, file, shape, dtype)
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
    yield from (array,) if array.ndim == 1 else array


def _npy_data(
    path: str, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> bytearray:
    """Read an array in pieces, because a damaged header may declare too many bytes."""
    num_bytes = math.prod(shape) * dtype.itemsize
    data = bytearray()
    # Read one byte more, to detect bytes after the array.
    while piece := file.read(min(_PIECE, num_bytes + 1 - len(data))):
        data += piece
    if len(data) < num_bytes:
        raise InputError(
            f"{path}: has {len(data)} bytes after its header, but shape {shape} of "
            f"{dtype} needs {num_bytes}; the file was probably truncated, so copy it "
            "again or make it again"
        )
    if len(data) > num_bytes:
        raise InputError(
            f"{path}: has bytes after its array of shape {shape}; a .npy file holds "
            "one array, so copy it again or write each array into its own file"
        )
    return data


_PIECE = 1 << 24
_SKIPPED = 1 << 20
READ_BY_PARTS = {"parquet", "arrow", "ds"}
"""Formats whose readers read only parts of a file, many bytes at a time."""
