"""Check selected rows and columns of a batch, and compute all fields but the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from roxxel_curriculum._bind.reading import BatchReader

Field: TypeAlias = Literal["tokens", "segment_ids", "positions", "source", "loss_mask"]

Rows: TypeAlias = "slice | npt.ArrayLike"

FIELDS: tuple[Field, ...] = (
    "tokens",
    "segment_ids",
    "positions",
    "source",
    "loss_mask",
)


def checked_fields(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Return the names of a batch's fields, each once."""
    if isinstance(fields, str | Mapping):
        raise TypeError(
            f"fields must be a list of names, got {fields!r}; give such as "
            '("tokens", "loss_mask")'
        )
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


def reads_documents(fields: Sequence[Field]) -> bool:
    """Return whether the fields depend on the documents of every window."""
    return "segment_ids" in fields or "positions" in fields


def checked_rows(rows: Rows, batch_size: int) -> slice | npt.NDArray[np.int64]:
    """Return rows as a slice or as an int64 array of indices in `[0, batch_size)`."""
    if isinstance(rows, slice):
        return rows
    chosen = np.asarray(rows)
    if chosen.size == 0:
        return np.empty(0, np.int64)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        raise TypeError(
            "rows must be a slice or a one-dimensional array of integers, got "
            f"{chosen.ndim} dimensions of {chosen.dtype.name}"
        )
    low, high = int(chosen.min()), int(chosen.max())
    if low < 0 or high >= batch_size:
        wrong = low if low < 0 else high
        raise IndexError(f"row {wrong} is outside the batch's rows [0, {batch_size})")
    return chosen.astype(np.int64)


def checked_columns(columns: slice | None, seq_len: int) -> tuple[int, int]:
    """Return the first column and the number of columns; None selects all."""
    if columns is None:
        return 0, seq_len
    if not isinstance(cast("Any", columns), slice):
        raise TypeError(f"columns must be a slice or None, got {columns!r}")
    start, stop, step = columns.indices(seq_len)
    if step != 1:
        raise ValueError(f"columns must be a slice without a step, got {columns}")
    return start, max(0, stop - start)


def fill_fields(
    fields: Sequence[Field],
    tokens: npt.NDArray[Any],
    source: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    reader: BatchReader,
    mask: npt.NDArray[np.int32] | None,
    *,
    first_column: int = 0,
) -> dict[str, npt.NDArray[Any]]:
    """Return fields of some rows by name, each of shape `(rows, columns)`.

    `source` and `starts` hold the index of each row's source and the first token of
    each row's whole window. `tokens` begins at column `first_column` of the window.
    `mask` is the field `loss_mask`, if the batch has it.
    """
    made: dict[str, npt.NDArray[Any]] = {"tokens": tokens}
    if reads_documents(fields):
        made["segment_ids"], made["positions"] = _segments(
            tokens.shape, source, starts, reader, first_column
        )
    if mask is not None:
        made["loss_mask"] = mask
    if "source" in fields:
        per_row = source.astype(np.int32)[:, None]
        made["source"] = np.repeat(per_row, tokens.shape[1], axis=1)
    return {field: made[field] for field in fields}


def _segments(
    shape: tuple[int, ...],
    source: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    reader: BatchReader,
    first_column: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return `segment_ids` and `positions` of some rows, int32.

    Both count from the start of the row's whole window. If a document starts before the
    window, position 0 is the first token of the window. Padding, the document -1, has
    segment 0.
    """
    num_columns = shape[1]
    spans = reader.spans(source, starts, first_column + num_columns)
    row, begins = spans.row, starts[spans.row]
    sizes = spans.stop - spans.start
    is_segment = (spans.document >= 0) & (sizes > 0)
    if first_column:  # A document may stop before it.
        at = np.maximum(spans.start, begins + first_column)
        sizes = np.maximum(spans.stop - at, 0)
    segment = np.add.accumulate(is_segment, dtype=np.int32)
    segment -= (segment - is_segment)[row.searchsorted(row)]  # From the row's first.
    segment *= is_segment
    segments = segment.repeat(sizes).reshape(shape)
    first = (begins - spans.start).astype(np.int32)
    positions = first.repeat(sizes).reshape(shape)
    positions += np.arange(first_column, first_column + num_columns, dtype=np.int32)
    return segments, positions
