"""The fields that a batch can hold beside its tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel_format import TokenReader

Field: TypeAlias = Literal["tokens", "segment_ids", "positions", "source"]

FIELDS: tuple[Field, ...] = ("tokens", "segment_ids", "positions", "source")


def checked_fields(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Return the fields of a batch without repetitions.

    Raises:
        TypeError: `fields` is a single string.
        ValueError: A field is unknown, or `fields` is empty.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields must be several names, got {fields!r}")
    checked = tuple(dict.fromkeys(fields))
    for field in checked:
        if field not in FIELDS:
            raise ValueError(
                f"unknown field {field!r}; "
                f"the fields are {', '.join(map(repr, FIELDS))}"
            )
    if not checked:
        raise ValueError('a batch needs at least one field, such as "tokens"')
    return checked


def fill_fields(
    fields: Sequence[Field],
    tokens: npt.NDArray[Any],
    source: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    readers: Sequence[TokenReader],
    *,
    first_column: int = 0,
) -> dict[str, npt.NDArray[Any]]:
    """Return fields of some rows by name, each with the shape of `tokens`.

    Args:
        fields: Names of the fields, in the order of the result.
        tokens: Tokens of the rows, shape `(rows, columns)`.
        source: Index of the source of each row.
        starts: First token of the whole window of each row.
        readers: The readers by source index.
        first_column: Column of the whole windows that is the first of `tokens`.
    """
    result: dict[str, npt.NDArray[Any]] = {}
    segments: npt.NDArray[np.int32] | None = None
    positions: npt.NDArray[np.int32] | None = None
    if "segment_ids" in fields or "positions" in fields:
        segments, positions = _segments(
            tokens.shape, source, starts, readers, first_column
        )
    for field in fields:
        if field == "tokens":
            result[field] = tokens
        elif field == "segment_ids" and segments is not None:
            result[field] = segments
        elif field == "positions" and positions is not None:
            result[field] = positions
        else:
            per_row = source.astype(np.int32)[:, None]
            result[field] = np.repeat(per_row, tokens.shape[1], axis=1)
    return result


def _segments(
    shape: tuple[int, ...],
    source: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    readers: Sequence[TokenReader],
    first_column: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return `segment_ids` and `positions` of some rows, int32.

    Both count from the start of the whole window of the row: a document that starts
    before the window has position 0 at the first token of the window.
    """
    segments = np.empty(shape, np.int32)
    positions = np.empty(shape, np.int32)
    columns = np.arange(first_column, first_column + shape[1])
    for row in range(shape[0]):
        start = int(starts[row])
        stop = start + first_column + shape[1]
        spans = readers[int(source[row])].document_spans(start, stop)
        first = spans[:, 1] - start
        sizes = spans[:, 2] - start - np.maximum(first, first_column)
        sizes = np.maximum(sizes, 0)
        if int(sizes.sum()) != shape[1]:
            raise ValueError(
                f"the documents of source {int(source[row])} cover {int(sizes.sum())} "
                f"of the tokens [{start + first_column}, {stop}); its reader must give "
                "every token to one document"
            )
        segments[row] = np.repeat(np.arange(1, len(spans) + 1), sizes)
        positions[row] = columns - np.repeat(first, sizes)
    return segments, positions
