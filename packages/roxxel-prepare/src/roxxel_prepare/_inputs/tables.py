"""Read documents from Parquet, from Arrow of `datasets`, and from `.ds` of datatrove.

These are divided without reading their documents: Parquet by its footer, `.ds` by its
index, Arrow by its record batches. pyarrow returns a batch of a stream only with its
values, so this module reads the head of each message itself. For an Arrow stream of 245
MiB with 256 batches it reads 41 KB in 2 ms, where pyarrow reads 257 MB in 250 ms, and
far longer from a bucket.
"""

from __future__ import annotations

import os
import struct
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from roxxel_format import ShardError
from roxxel_format.foreign import parse_datatrove

from roxxel_prepare._inputs.input_file import (
    InputError,
    as_seekable,
    library,
    naming_damage,
)
from roxxel_prepare._inputs.row_documents import batch_documents, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from roxxel_format.writing import Fields

    from roxxel_prepare._inputs.input_record import Span

_RUN_BYTES = 1 << 24
_ARROW_FILE = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
# Numbers of fields in the flatbuffer `Message`, and the type of a record batch.
_HEADER_TYPE, _BODY_LENGTH = 1, 3
_RECORD_BATCH = 3
_ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"


def token_documents(
    path: str, file: BinaryIO, index: bytes, span: Span | None
) -> Iterator[object]:
    """Yield the documents of a `.ds` file; with a span, only `[start, stop)`."""
    file = as_seekable(file)
    num_bytes = file.seek(0, os.SEEK_END)
    dtype, ends = _parsed(path, num_bytes, index)
    item_size = dtype.itemsize
    first, last = span or (0, ends.size)
    start = int(ends[first - 1]) if first else 0
    file.seek(start * item_size)
    most = _RUN_BYTES // item_size
    while first < last:
        until = max(first + 1, int(np.searchsorted(ends, start + most, "right")))
        until = min(until, last)
        stop = int(ends[until - 1])
        data = file.read((stop - start) * item_size)
        tokens = np.frombuffer(data, dtype)
        if tokens.size != stop - start:
            raise InputError(f"{path}: was truncated while it was read; copy it again")
        yield from np.split(tokens, ends[first : until - 1] - start)
        first, start = until, stop


def divided_tokens(path: str, num_bytes: int, index: bytes, least: int) -> list[Span]:
    """Divide a `.ds` file into ranges of documents of about `least` bytes."""
    _, ends = _parsed(path, num_bytes, index)
    count = num_bytes // max(1, least)
    if count < 2 or not ends.size:
        return []
    marks = [int(ends[-1]) * number // count for number in range(1, count)]
    cuts = np.unique([0, *np.searchsorted(ends, marks), ends.size]).tolist()
    return list(pairwise(cuts))


def _parsed(
    path: str, num_bytes: int, index: bytes
) -> tuple[np.dtype[Any], npt.NDArray[np.int64]]:
    try:
        return parse_datatrove(path, num_bytes, index)
    except ShardError as error:
        raise InputError(str(error)) from None


def parquet_documents(
    path: str, file: BinaryIO, fields: Fields, span: Span | None
) -> Iterator[object]:
    """Yield the documents of a Parquet file; with a span, of some row groups."""
    table = _parquet_table(path, file)
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


def divided_row_groups(path: str, file: BinaryIO, least: int) -> list[Span]:
    """Divide a Parquet file into ranges of row groups of at least `least` bytes."""
    metadata = _parquet_table(path, file).metadata
    spans: list[Span] = []
    start = size = 0
    for stop in range(1, metadata.num_row_groups + 1):
        size += metadata.row_group(stop - 1).total_byte_size
        if size >= least or stop == metadata.num_row_groups:
            spans.append((start, stop))
            start, size = stop, 0
    return spans if len(spans) > 1 else []


def _parquet_table(path: str, file: BinaryIO) -> Any:
    """Open a Parquet file; raise InputError if it is damaged."""
    parquet = library("pyarrow.parquet", "parquet", path)
    source = as_seekable(file)
    with naming_damage(partial(_not_parquet, path)):
        return parquet.ParquetFile(source, page_checksum_verification=True)


def _not_parquet(path: str, why: str) -> str:
    return f"{path}: not a Parquet file ({why}); copy it again or make it again"


def arrow_documents(
    path: str, file: BinaryIO, fields: Fields, span: Span | None
) -> Iterator[object]:
    """Yield the documents of an Arrow file or stream; with a span, of some batches."""
    row = 0
    for number, batch in enumerate(_record_batches(path, file)):
        if span is None or span[0] <= number < span[1]:
            check_columns(path, batch.schema.names, fields)
            yield from batch_documents(path, batch, fields, row)
        row += batch.num_rows


def _record_batches(path: str, file: BinaryIO) -> Iterator[Any]:
    arrow = library("pyarrow", "parquet", path)
    seekable = as_seekable(file)
    is_file = seekable.read(len(_ARROW_FILE)) == _ARROW_FILE
    seekable.seek(-min(len(_ARROW_END), seekable.seek(0, os.SEEK_END)), os.SEEK_END)
    if not is_file and seekable.read() != _ARROW_END:
        raise InputError(
            f"{path}: does not end as an Arrow file or stream does; it was probably "
            "truncated, so copy it again or make it again"
        )
    seekable.seek(0)
    is_plain = getattr(file, "name", None) == path
    with naming_damage(partial(_not_arrow, path)):
        source = arrow.memory_map(path) if is_plain else seekable
        if is_file:
            reader = arrow.ipc.open_file(source)
            yield from map(reader.get_batch, range(reader.num_record_batches))
        else:
            yield from arrow.ipc.open_stream(source)


def _not_arrow(path: str, why: str) -> str:
    return (
        f"{path}: not an Arrow file, or a damaged one ({why}); copy it again or make "
        "it again"
    )


def divided_batches(path: str, file: BinaryIO, least: int) -> list[Span]:
    """Divide an Arrow file into ranges of record batches of at least `least` bytes.

    Reads the metadata of each batch, and not its values.
    """
    spans: list[Span] = []
    start = size = stop = 0
    for stop, num_bytes in enumerate(_batch_sizes(path, file), 1):
        size += num_bytes
        if size >= least:
            spans.append((start, stop))
            start, size = stop, 0
    if size:
        spans.append((start, stop))
    return spans if len(spans) > 1 else []


def _batch_sizes(path: str, file: BinaryIO) -> Iterator[int]:
    """Yield the size of each record batch of an Arrow file or stream.

    A file holds a stream after its first 8 bytes.
    """
    file = as_seekable(file)
    at = 8 if file.read(len(_ARROW_FILE)) == _ARROW_FILE else 0
    try:
        while True:
            file.seek(at)
            mark, length = struct.unpack("<Ii", file.read(8))
            at += 8
            if mark != _CONTINUATION:  # Files of 2019 and earlier lack this mark.
                length = mark
                at = file.seek(at - 4)
            if length == 0:
                return
            is_batch, num_bytes = _parsed_message(file.read(length))
            at += length + num_bytes
            if is_batch:
                yield length + num_bytes
    except struct.error as error:
        raise InputError(_not_arrow(path, f"no message at byte {at}")) from error


def _parsed_message(metadata: bytes) -> tuple[bool, int]:
    """Return whether a message is a record batch, and the size of its body.

    `metadata` is the flatbuffer `Message` of Arrow's specification.
    """
    (table,) = struct.unpack_from("<I", metadata)
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    (fields_bytes,) = struct.unpack_from("<H", metadata, fields)

    def field(form: str, number: int) -> int:
        """Return a field; the table may omit a field with the value 0."""
        entry = 4 + 2 * number
        if entry >= fields_bytes:
            return 0
        (offset,) = struct.unpack_from("<H", metadata, fields + entry)
        return struct.unpack_from(form, metadata, table + offset)[0] if offset else 0

    num_bytes = field("<q", _BODY_LENGTH)
    if num_bytes < 0:
        raise struct.error
    return field("<B", _HEADER_TYPE) == _RECORD_BATCH, num_bytes
