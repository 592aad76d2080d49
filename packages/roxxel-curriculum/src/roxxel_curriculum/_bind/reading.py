"""Read fields of some rows of a batch from all its sources, each source in one call.

The cost depends on the rows and their sources, not on the number of declared sources
(`tests-integration/benchmarks/curriculum_batch.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from roxxel_format import TokenReader

    _Integers = npt.NDArray[np.int64]

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


def by_source(source: _Integers) -> Iterator[tuple[int, _Integers]]:
    """Yield the index of each source that has rows, and its rows, ascending.

    `source` is the index of the source of each row.
    """
    if not source.size:
        return
    order = source.argsort(kind="stable")
    ordered = source[order]
    for which in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        yield int(source[which[0]]), which


class RowSpans(NamedTuple):
    """The documents of a batch, row by row.

    `start` and `stop` count tokens of the row's source, and are clipped to the row's
    window. Padding is the document -1. Some documents may have no tokens.
    """

    row: _Integers
    document: _Integers
    start: _Integers
    stop: _Integers


class BatchReader:
    """Reads the rows of batches from several readers.

    In all methods, `source` and `starts` hold the index of each row's reader and the
    first token of its window.
    """

    def __init__(self, readers: Sequence[TokenReader]) -> None:
        self._fills = [reader.read_into for reader in readers]
        self._spans = [reader.window_spans for reader in readers]

    def fill(
        self,
        source: _Integers,
        starts: _Integers,
        out: npt.NDArray[Any],
        rows: _Integers | None = None,
    ) -> None:
        """Fill `rows` of `out` with the windows, each as long as a row.

        By default, fill all rows.
        """
        if len(self._fills) == 1 and rows is None:
            self._fills[0](starts, out)
            return
        for index, which in by_source(source):
            at = which if rows is None else rows[which]
            self._fills[index](starts[which], out, at.tolist())

    def spans(self, source: _Integers, starts: _Integers, length: int) -> RowSpans:
        """Return the documents of the windows, by row."""
        if not (source.size and length):
            return RowSpans(*np.empty((4, 0), np.int64))
        groups = [*by_source(source)]
        order = np.concatenate([which for _, which in groups])
        begins = starts[order]
        found = [self._spans[index](starts[which], length) for index, which in groups]
        counts, document, stop = map(np.concatenate, zip(*found, strict=True))
        lasts = np.add.accumulate(counts) - 1
        stop[lasts] = begins + length
        start = np.empty_like(stop)
        start[1:] = stop[:-1]
        start[lasts - counts + 1] = begins
        row = order.repeat(counts)
        if len(self._spans) > 1:
            by_row = row.argsort(kind="stable")
            row, document = row[by_row], document[by_row]
            start, stop = start[by_row], stop[by_row]
        return RowSpans(row, document, start, stop)

    def fields(
        self,
        fields: Sequence[Field],
        tokens: npt.NDArray[Any],
        source: _Integers,
        starts: _Integers,
        mask: npt.NDArray[np.int32] | None,
        *,
        first_column: int = 0,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return fields of some rows by name, each of shape `(rows, columns)`.

        The windows are whole, and `tokens` begins at their column `first_column`.
        `mask` is the field `loss_mask`, if the batch has it.
        """
        made: dict[str, npt.NDArray[Any]] = {"tokens": tokens}
        if reads_documents(fields):
            made["segment_ids"], made["positions"] = self._segments(
                tokens.shape, source, starts, first_column
            )
        if mask is not None:
            made["loss_mask"] = mask
        if "source" in fields:
            per_row = source.astype(np.int32)[:, None]
            made["source"] = np.repeat(per_row, tokens.shape[1], axis=1)
        return {field: made[field] for field in fields}

    def _segments(
        self,
        shape: tuple[int, ...],
        source: _Integers,
        starts: _Integers,
        first_column: int,
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Return `segment_ids` and `positions` of some rows, int32.

        Both count from the start of the row's whole window. If a document starts before
        the window, position 0 is the first token of the window. Padding, the document
        -1, has segment 0.
        """
        num_columns = shape[1]
        spans = self.spans(source, starts, first_column + num_columns)
        row, begins = spans.row, starts[spans.row]
        sizes = spans.stop - spans.start
        is_segment = (spans.document >= 0) & (sizes > 0)
        if first_column:  # A document may stop before it.
            at = np.maximum(spans.start, begins + first_column)
            sizes = np.maximum(spans.stop - at, 0)
        segment = np.add.accumulate(is_segment, dtype=np.int32)
        # Count from the row's first segment.
        segment -= (segment - is_segment)[row.searchsorted(row)]
        segment *= is_segment
        segments = segment.repeat(sizes).reshape(shape)
        first = (begins - spans.start).astype(np.int32)
        positions = first.repeat(sizes).reshape(shape)
        positions += np.arange(first_column, first_column + num_columns, dtype=np.int32)
        return segments, positions
