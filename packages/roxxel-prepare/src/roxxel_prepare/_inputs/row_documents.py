"""Make documents from the fields of table rows and JSON lines; see `Fields`."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from roxxel_prepare._inputs.formats import not_utf8
from roxxel_prepare._inputs.input_file import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from roxxel_format.writing import Fields


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
        yield tried(_row_document, path, row, fields, pairs)


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


def _row_document(
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
    return row_document(f"{path}: row {row}", fields, found)


def row_document(where: str, fields: Fields, values: Mapping[str, Any]) -> object:
    """Return the document of a row, whose fields are `values`."""
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


def _json_kind(value: object) -> str:
    """Describe a JSON value, in words of JSON and not of Python."""
    if value is None:
        return "null"
    kinds: dict[type, str] = {bool: "a boolean", str: "a text", list: "a list"}
    kinds[dict] = "an object"
    return kinds.get(type(value), "a number")


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
    return row_document(where, fields, table)


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


def _lacks(kind: str, name: str, names: Sequence[str]) -> str:
    others = f"only {', '.join(names)}" if names else f"nor any other {kind}"
    return f"has no {kind} {name!r}, {others}"


def tried(read: Callable[..., object], *arguments: object) -> object:
    """Return a document, or the InputError that reading it raises."""
    try:
        return read(*arguments)
    except InputError as error:
        return error
