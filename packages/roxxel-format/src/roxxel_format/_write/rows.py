"""Rows with fields as documents: a prompt and its completion, an id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from roxxel_format._write.casting import DocumentError
from roxxel_format._write.fields import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from roxxel_format._write.fields import Fields


class RowError(DocumentError):
    """A row is not a mapping, or lacks a field."""


def as_rows(rows: Iterable[object], fields: Fields) -> Iterator[Row]:
    """Convert mappings to `Row` objects; rows read from files already are."""
    for number, row in enumerate(rows):
        yield row if isinstance(row, Row) else _row(number, row, fields)


def _row(number: int, row: object, fields: Fields) -> Row:
    """Return the document of a mapping."""
    if not isinstance(row, Mapping):
        raise RowError(
            number,
            f" is a {type(row).__name__}; pass a mapping with the fields "
            f"{' and '.join(map(repr, fields.names))}",
        )
    table = cast("Mapping[str, object]", row)
    for name in fields.names:
        if name not in table:
            raise RowError(
                number,
                f" has no field {name!r}, only {', '.join(map(str, table))}; name the "
                "fields of the rows",
            )
    try:
        document = fields.document(table)
    except ValueError as error:
        raise RowError(number, f": its {error}") from error
    assert isinstance(document, Row)  # noqa: S101 - `fields` needs rows
    return document
