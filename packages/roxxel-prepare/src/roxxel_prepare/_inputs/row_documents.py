"""Make documents of the rows of a file: JSON, CSV, TSV, or the batches of a table.

A file of text is divided into rows here, with one row in memory. What a row's document
is, `Fields` says.

TSV is the media type `text/tab-separated-values` of IANA: a row is a line, its fields
are what lies between tabs, and a quotation mark is a character like any other. Some
programs write CSV with tabs into a `.tsv`, where a field in quotes may hold tabs, line
ends and doubled quotes. Nothing in a file tells the two apart for certain. So fields
that are valid CSV, but mean something else in TSV, are refused unless the user has
named the format.
"""

from __future__ import annotations

import csv
import importlib
import json
import re
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from roxxel_prepare._inputs.formats import BYTE_ORDER_MARK, not_utf8, text_of
from roxxel_prepare._inputs.input_file import FormatError, InputError, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from roxxel_format.writing import Fields

_PIECE = 1 << 20
_SPACE = b" \t\r\n"
# The third alternative is a string that goes on after the bytes that were read.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]|"', re.DOTALL)
_MAX_FIELD = 2**31 - 1

# Quotes that go on after a tab or the line's end, or that hold doubled or no text.
_OF_CSV = re.compile(r'"[^"]*+(?:""[^"]*+)*+|"[^"]*+(?:""[^"]*+)++"|""')


def json_document(where: str, line: bytes, fields: Fields) -> object:
    """Return the document of a JSON line: fields of an object, or one value."""
    value = _json_value(where, line)
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        for field in fields.names:
            if field not in table:
                chats = "; pass --chat auto if its messages are chats, or "
                has_chats = "messages" in table and not fields.has_mask
                raise InputError(
                    f"{where}: {_lacks('field', field, sorted(table))}"
                    f"{chats if has_chats else '; pass '}"
                    f"the field of {fields.passed_as(field)}"
                )
    elif fields.needs_rows:
        raise InputError(
            f"{where}: is {_json_kind(value)}; a row is an object with the fields "
            f"{' and '.join(map(repr, fields.names))}"
        )
    else:
        table = {fields.text: value}
    for field in () if fields.chat else fields.contents:
        problem = _no_document(table[field])
        if problem:
            has_fields = isinstance(value, dict)
            raise InputError(
                f"{where}: {f'field {field!r} ' if has_fields else ''}{problem}; a "
                f"{fields.part(field)} is a text or a list of tokens, so correct it, "
                "or pass --skip-bad to leave it out"
            )
    return _row_document(where, fields, table)


def _no_document(value: object) -> str | None:
    """Describe why a JSON value is no document; None for a text and for numbers."""
    if isinstance(value, str):
        return None
    if not isinstance(value, list):
        return f"is {_json_kind(value)}"
    items = cast("list[object]", value)
    # In Python a boolean is an integer, so an array of numbers would hold 0 or 1.
    if items and bool in set(map(type, items)):
        at = next(at for at, item in enumerate(items) if type(item) is bool)
        return f"holds {json.dumps(items[at])} at index {at}"
    return None


def _json_value(where: str, line: bytes) -> Any:
    decode = _fast_decoder()
    if decode is not None:
        # Whatever it refuses, such as NaN, the standard library accepts or names.
        with suppress(Exception):
            return decode(line)
    try:
        # Given bytes, `json` would guess UTF-16, and accept surrogates. If a string is
        # not closed, `json` would blame the line's end in it.
        return json.loads(line.rstrip(b"\r\n").decode())
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from error
    except (ValueError, RecursionError) as error:
        why = str(error)
        if isinstance(error, json.JSONDecodeError):  # Its line is always the first.
            why = f"{error.msg.removesuffix(' at')} at character {error.pos}"
        raise InputError(f"{where}: not JSON ({why}); correct the line") from error


@cache
def _fast_decoder() -> Callable[[bytes], Any] | None:
    """Return the decoder of msgspec (extra `fast`), twice as fast as `json`."""
    try:
        return importlib.import_module("msgspec.json").decode
    except ModuleNotFoundError:
        return None


def _json_kind(value: object) -> str:
    """Describe a JSON value, in words of JSON and not of Python."""
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "a boolean", str: "a text", list: "a list"}
    kinds[dict] = "an object"
    return kinds.get(type(value), "a number")


def array_documents(path: str, file: BinaryIO, fields: Fields) -> Iterator[object]:
    """Yield the documents of a JSON array; its items are like lines of JSON lines.

    Errors name the item, from 0.
    """
    for number, item in enumerate(_array_items(path, file)):
        yield tried(json_document, f"{path}: item {number}", item, fields)


def _array_items(path: str, file: BinaryIO) -> Iterator[bytes]:
    data = file.read(_PIECE).removeprefix(BYTE_ORDER_MARK).lstrip(_SPACE)[1:]
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

    With `may_be_quoted`, raises FormatError if the file looks like CSV with tabs.
    """
    header: list[str] | None = None
    for number, line in enumerate(lines, 1):
        text = line.decode(errors="surrogateescape")
        text = text.removesuffix("\n").removesuffix("\r")
        row = text.split("\t")
        if may_be_quoted and any(map(_OF_CSV.fullmatch, row)):
            raise FormatError(
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
    return _row_document(where, fields, texts)


def batch_documents(
    path: str, batch: Any, fields: Fields, first: int
) -> Iterator[object]:
    """Yield the documents of a record batch, whose first row is number `first`."""
    names = fields.names or batch.schema.names
    columns = [_values(batch.column(name)) for name in names]
    if fields.names and not fields.needs_rows and type(columns[0]) is list:
        yield from columns[0]
        return
    for row, values in enumerate(zip(*columns, strict=True), first):
        pairs = zip(names, values, strict=True)
        yield tried(_batch_row, path, row, fields, pairs)


def _values(column: Any) -> Any:
    """Return the texts of a column of texts, or any other column itself.

    Converting a whole column takes a tenth of the time of converting its values one by
    one.
    """
    is_text = str(column.type) in ("string", "large_string", "string_view")
    if is_text and not column.null_count:
        with suppress(UnicodeDecodeError):  # Then each row is read, to name one.
            return column.to_pylist()
    return column


def _batch_row(
    path: str, row: int, fields: Fields, pairs: Iterable[tuple[str, Any]]
) -> object:
    found: dict[str, object] = {}
    for name, value in pairs:
        if isinstance(value, str):
            found[name] = value
        elif name in fields.contents and not fields.chat:
            found[name] = column_document(path, row, value)
        else:
            found[name] = _python_value(path, row, value)
    return _row_document(f"{path}: row {row}", fields, found)


def column_document(path: str, row: int, value: Any) -> object:
    """Return a text, or a list of tokens as an array."""
    items: Any = getattr(value, "values", None)
    what, remedy = "a null", "correct it, or pass --skip-bad to leave it out"
    of_another_type = "pass the column of the documents as --field"
    if hasattr(items, "to_numpy"):
        if not items.null_count:
            array = items.to_numpy(zero_copy_only=False)
            if array.dtype.kind in "iuf":
                return array
            what, remedy = str(value.type), of_another_type
        else:
            what = f"a list with {items.null_count} null"
    elif value.is_valid:
        text = _python_value(path, row, value)
        if isinstance(text, str):
            return text
        what, remedy = str(value.type), of_another_type
    raise InputError(
        f"{path}: row {row} holds {what}; a document is a text or a list of tokens, so "
        f"{remedy}"
    )


def _python_value(path: str, row: int, value: Any) -> object:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: row {row} is not UTF-8 text ({error.reason} at byte "
            f"{error.start}); convert it first"
        ) from error


def _row_document(where: str, fields: Fields, values: Mapping[str, Any]) -> object:
    for name in fields.names:
        _check_text(where, values[name])
    try:
        document = fields.document(values)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    if fields.chat:
        _check_text(where, getattr(document, "content", None))
    return document


def _check_text(where: str, text: object) -> None:
    """Raise InputError for half a surrogate pair, which no encoding can store."""
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: holds the lone surrogate {text[error.start]!a} at character "
            f"{error.start}, which is no text; correct it"
        ) from error


def check_columns(path: str, names: Sequence[str], fields: Fields) -> None:
    """Raise InputError unless a table has each column of `fields` once."""
    for field in fields.names:
        number = names.count(field)
        if number != 1:
            problem = _lacks("column", field, names)
            if number:
                problem = f"has {number} columns {field!r}"
            raise InputError(
                f"{path}: {problem}; pass the column of {fields.passed_as(field)}"
            )


def _lacks(kind: str, name: str, names: Sequence[str]) -> str:
    others = f"only {', '.join(names)}" if names else f"nor any other {kind}"
    return f"has no {kind} {name!r}, {others}"


def tried(read: Callable[..., object], *arguments: object) -> object:
    """Return a document, or the InputError that reading it raises."""
    try:
        return read(*arguments)
    except InputError as error:
        return error
