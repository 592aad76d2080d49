"""Divide files into rows: arrays of JSON, and tables of CSV and TSV.

Each reader keeps one row in memory. JSON lines need no such module, because a row is a
line.

TSV is the media type `text/tab-separated-values` of IANA: a row is a line, its fields
are what lies between tabs, and a quotation mark is a character like any other. Some
programs write CSV with tabs into a `.tsv`, where a field in quotes may hold tabs, line
ends and doubled quotes. Nothing in a file tells the two apart for certain. So fields
that are valid CSV, but mean something else in TSV, are refused unless the user has
named the format.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, BinaryIO

from roxxel_prepare._inputs.formats import text_of
from roxxel_prepare._inputs.input_file import InputError, reason
from roxxel_prepare._inputs.row_documents import (
    check_columns,
    json_document,
    row_document,
    tried,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roxxel_format.writing import Fields

_PIECE = 1 << 20
_SPACE = b" \t\r\n"
# The third alternative is a string that goes on after the bytes that were read.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]|"', re.DOTALL)
_MAX_FIELD = 2**31 - 1

# Quotes that go on after a tab or the line's end, or that hold doubled or no text.
_OF_CSV = re.compile(r'"[^"]*+(?:""[^"]*+)*+|"[^"]*+(?:""[^"]*+)++"|""')


def array_documents(path: str, file: BinaryIO, fields: Fields) -> Iterator[object]:
    """Yield the documents of a JSON array; its items are like lines of JSON lines.

    Errors name the item, from 0.
    """
    for number, item in enumerate(_array_items(path, file)):
        yield tried(json_document, f"{path}: item {number}", item, fields)


def _array_items(path: str, file: BinaryIO) -> Iterator[bytes]:
    data = file.read(_PIECE).removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)[1:]
    number = depth = start = at = 0
    end = b","
    while end == b",":
        token = _TOKEN.search(data, at)
        if token is None or token[0] == b'"':
            at = (len(data) if token is None else token.start()) - start
            piece = file.read(max(_PIECE, len(data) - start))
            if not piece:
                raise InputError(
                    f"{path}: ends inside its array, at item {number}; the file was "
                    "probably truncated, so copy it again or make it again"
                )
            data, start = data[start:] + piece, 0
            continue
        at = token.end()
        if token[0] in (b"{", b"["):
            depth += 1
        elif depth and token[0] != b",":
            depth -= token[0] in (b"}", b"]")
        elif not depth and token[0] in (b",", b"]", b"}"):
            item, end, start = data[start : token.start()], token[0], at
            if end == b"," or number or item.strip(_SPACE):
                yield item
                number += 1
    rest = data[start:]
    while not rest.strip(_SPACE) and (piece := file.read(_PIECE)):
        rest = piece
    if end != b"]" or rest.strip(_SPACE):
        raise InputError(
            f"{path}: does not end after its array of {number} items; copy the file "
            "again, or pass --format jsonl if each line is a value"
        )


def csv_documents(
    path: str, lines: Iterator[bytes], fields: Fields
) -> Iterator[object]:
    """Yield the documents of the rows of CSV, whose first row names columns.

    A field may be in quotes, and then hold newlines. Errors name the first line of the
    row.
    """
    # A part of a row in another encoding is an error of this row alone.
    texts = (line.decode(errors="surrogateescape") for line in lines)
    reader = csv.reader(texts, strict=True)
    header: list[str] | None = None
    while True:
        where = f"{path}:{reader.line_num + 1}"
        row = _next_row(where, reader)
        if row is None:
            return
        if not row:  # An empty line.
            continue
        if header is None:
            header = row
            check_columns(path, header, fields)
        else:
            yield tried(_table_row, where, header, row, fields)


def tsv_documents(
    path: str, lines: Iterator[bytes], fields: Fields, *, may_be_quoted: bool
) -> Iterator[object]:
    """Yield the documents of the rows of TSV, whose first row names columns.

    With `may_be_quoted`, raises InputError if the file looks like CSV with tabs.
    """
    header: list[str] | None = None
    for number, line in enumerate(lines, 1):
        text = line.decode(errors="surrogateescape")
        text = text.removesuffix("\n").removesuffix("\r")
        row = text.split("\t")
        if may_be_quoted and any(map(_OF_CSV.fullmatch, row)):
            raise InputError(
                f"{path}:{number}: has a field in quotes, as CSV has and TSV has not; "
                "save the rows as CSV, JSON lines or Parquet, or pass --format tsv if "
                "the quotes are part of the texts"
            )
        if header is None:
            header = row
            check_columns(path, header, fields)
        elif text or len(header) == 1:  # Else an empty line.
            yield tried(_table_row, f"{path}:{number}", header, row, fields)


def _next_row(where: str, reader: Iterator[list[str]]) -> list[str] | None:
    # The limit of 128 KiB for a field holds for the process, so it is put back.
    limit = csv.field_size_limit(_MAX_FIELD)
    try:
        return next(reader, None)
    except csv.Error as error:
        raise InputError(
            f"{where}: not a row of quoted fields ({reason(error)}); put a field with "
            "quotes or delimiters in quotes, and double the quotes in it"
        ) from error
    finally:
        csv.field_size_limit(limit)


def _table_row(where: str, header: list[str], row: list[str], fields: Fields) -> object:
    if len(row) != len(header):
        raise InputError(
            f"{where}: has {len(row)} fields, but the first row names {len(header)} "
            "columns; correct the row (in TSV, no field holds a tab or a line end)"
        )
    values = dict(zip(header, row, strict=True))
    texts = {
        name: text_of(where, values[name].encode(errors="surrogateescape"))
        for name in fields.names or header
    }
    return row_document(where, fields, texts)
