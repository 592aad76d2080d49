"""Read the rows of a step: their tokens, and the fields beside them.

Each source is read in one call. The cost depends on the rows and their sources, not on
the number of declared sources (`tests-integration/benchmarks/curriculum_batch.py`).

The loss leaves out a token if its document is withdrawn, if it is in a withdrawn range
of tokens, if it is padding, or if the column `loss_mask` of its corpus is 0 there.
Withdrawn ranges are not read: they may be damaged, and a batch must not depend on
damaged bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from roxxel_format import ChecksumError
from roxxel_store import roxxel_command

from roxxel_curriculum._bind.sources import mask_column
from roxxel_curriculum._errors import StateMismatch
from roxxel_curriculum._withdrawn import NOTHING, in_force

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from roxxel_format import TokenReader

    from roxxel_curriculum._plan.solution import Solution
    from roxxel_curriculum._withdrawn import Withdrawal

    _Integers = npt.NDArray[np.int64]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

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
    is_listed = hasattr(type(fields), "__iter__")
    if not is_listed or isinstance(fields, str | Mapping):
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


class RowReader:
    """Reads the rows of steps from the sources of a run.

    In all methods, `source` and `starts` hold the index of each row's source and the
    first token of its window.

    Only with the field `loss_mask` does a run use the columns `loss_mask` of its
    corpora. If a source had no column when the run first read from it, the run never
    uses one: a column that was written later would change past masks.

    Attributes:
        digests: Digest of the column `loss_mask` by source name; None for a source
            without a column. Empty unless the run uses columns.
    """

    def __init__(
        self,
        solution: Solution,
        readers: Sequence[TokenReader],
        fields: tuple[Field, ...],
    ) -> None:
        self._fields = fields
        self._has_mask = "loss_mask" in fields
        self._reads_documents = "segment_ids" in fields or "positions" in fields
        names = solution.source_names
        recorded = solution.declaration.masks
        columns: dict[int, Any] = {}
        self.digests: dict[str, str | None] = {}
        for index, name in enumerate(names if self._has_mask else ()):
            began_without = name in recorded and recorded[name] is None
            column = None if began_without else mask_column(name, readers[index])
            if column is not None:
                columns[index] = column
            self.digests[name] = None if column is None else str(column.digest)
        self._columns = columns
        self._names = names
        self._readers = readers
        self._fills = [reader.read_into for reader in readers]
        self._spans = [reader.window_spans for reader in readers]
        self._withdrawals = solution.withdrawals
        sources = enumerate(solution.declaration.sources)
        self._padded = {index for index, source in sources if source.num_padding}
        self.check_columns(recorded)

    def read(
        self,
        step: int,
        source: _Integers,
        starts: _Integers,
        tokens: npt.NDArray[Any],
    ) -> None:
        """Fill `tokens` with the windows of some rows, and 0 in withdrawn ranges.

        Raises:
            ChecksumError: A block is damaged; the message says how to leave it out.
        """
        length = tokens.shape[1]
        try:
            partial = self.partial_rows(step, source, starts, length)
            if not partial.size:
                self._fill(source, starts, tokens)
                return
            whole = np.delete(np.arange(source.size), partial)
            self._fill(source[whole], starts[whole], tokens, whole)
            for row in partial:
                start = int(starts[row])
                stop = start + length
                left_out = self._ranges(step, int(source[row]), start, stop)
                tokens[row] = 0
                # Read the gaps between the ranges: up to each, and after the last.
                at = start
                for range_start, range_stop in [*left_out, (stop, stop)]:
                    if at < range_start:
                        gap = tokens[row : row + 1, at - start : range_start - start]
                        self._fill(source[[row]], np.array([at]), gap)
                    at = range_stop
        except ChecksumError as error:
            remedy = self._remedy(step, error)
            if remedy is None:
                raise
            remedies = f"{error.remedy}; {remedy}"
            raise error.reworded(error.reason, remedies) from error

    def fields(
        self,
        step: int,
        source: _Integers,
        starts: _Integers,
        first_column: int,
        tokens: npt.NDArray[Any],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the fields of some rows by name, each of shape `(rows, columns)`.

        The windows are whole, and `tokens` begins at their column `first_column`.
        """
        num_columns = tokens.shape[1]
        made: dict[str, npt.NDArray[Any]] = {"tokens": tokens}
        if self._reads_documents:
            made["segment_ids"], made["positions"] = self._segments(
                tokens.shape, source, starts, first_column
            )
        if self._has_mask:
            begins = starts + first_column
            made["loss_mask"] = self._mask(step, source, begins, num_columns)
        if "source" in self._fields:
            per_row = source.astype(np.int32)[:, None]
            made["source"] = np.repeat(per_row, num_columns, axis=1)
        return {field: made[field] for field in self._fields}

    def partial_rows(
        self, step: int, source: _Integers, starts: _Integers, length: int
    ) -> _Integers:
        """Return the rows whose windows have withdrawn ranges of tokens."""
        withdrawn = self._withdrawn(step)
        if not withdrawn:
            return np.empty(0, np.int64)
        is_partial = np.zeros(source.size, np.bool_)
        for index, rows in _by_source(source):
            if index in withdrawn:
                tokens = withdrawn[index].tokens
                is_partial[rows] = tokens.touches(starts[rows], length)
        return np.flatnonzero(is_partial)

    def will_need(
        self, step: int, source: _Integers, starts: _Integers, length: int
    ) -> None:
        """Hint that windows will be read soon, up to a step."""
        for index, which in _by_source(source):
            begins, documents = starts[which], self._reads_documents
            if self._has_mask:
                if index in self._columns:
                    self._columns[index].will_need(begins, length)
                found = self._withdrawn(step).get(index)
                documents |= index in self._padded or bool(found and found.documents)
            self._readers[index].will_need(begins, length, documents=documents)

    def check_columns(self, recorded: Mapping[str, str | None]) -> None:
        """Raise `StateMismatch` if a source now has another column than was recorded.

        `recorded` is what `recorded_masks` returns of a state. A run without the field
        `loss_mask` reads no column.
        """
        if not self._has_mask:
            return
        found = [
            f"the column 'loss_mask' of source {name!r} "
            + ("was absent" if past is None else f"had the digest {past}")
            + " and now "
            + ("is gone" if now is None else f"has the digest {now}")
            for name, past in recorded.items()
            if past != (now := self.digests.get(name))
        ]
        if found:
            raise StateMismatch(found)

    def _fill(
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
        for index, which in _by_source(source):
            at = which if rows is None else rows[which]
            self._fills[index](starts[which], out, at.tolist())

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
        spans = self._row_spans(source, starts, first_column + num_columns)
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

    def _mask(
        self,
        step: int,
        source: _Integers,
        starts: _Integers,
        length: int,
    ) -> npt.NDArray[np.int32]:
        """Return 1 for each token to learn, else 0; int32, shape `(rows, length)`."""
        mask = np.ones((source.size, length), np.int32)
        withdrawn = self._withdrawn(step)
        for index, rows in _by_source(source):
            if index in self._columns:
                mask[rows] = self._columns[index].read(starts[rows], length) != 0
            left_out = withdrawn[index].documents if index in withdrawn else NOTHING
            if index in self._padded or left_out:
                spans = self._row_spans(source[rows], starts[rows], length)
                document, sizes = spans.document, spans.stop - spans.start
                is_learned = (document >= 0) & ~left_out.holds(document)
                mask[rows] &= np.repeat(is_learned, sizes).reshape(rows.size, length)
        for row in self.partial_rows(step, source, starts, length):
            index, start = int(source[row]), int(starts[row])
            for first, last in self._ranges(step, index, start, start + length):
                mask[row, first - start : last - start] = 0
        return mask

    def _row_spans(
        self, source: _Integers, starts: _Integers, length: int
    ) -> _RowSpans:
        if not (source.size and length):
            return _RowSpans(*np.empty((4, 0), np.int64))
        groups = [*_by_source(source)]
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
        return _RowSpans(row, document, start, stop)

    def _withdrawn(self, step: int) -> dict[int, Withdrawal]:
        """Return what is withdrawn in a step, by the index of its source.

        A source that no past step has read may be gone, and its withdrawals with it.
        """
        if not self._withdrawals:
            return {}
        found = in_force(self._withdrawals, step)
        names = enumerate(self._names)
        return {index: found[name] for index, name in names if name in found}

    def _ranges(
        self, step: int, index: int, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """Return the withdrawn ranges of a source's tokens, clipped, in order."""
        found = self._withdrawn(step).get(index)
        return [] if found is None else found.tokens.within(start, stop)

    def _remedy(self, step: int, error: ChecksumError) -> str | None:
        """Describe how to train without a damaged block; None if no source holds it."""
        items: dict[str, str] = {}
        has_more = False
        for index, reader in enumerate(self._readers):
            tokens = reader.damaged_tokens(error)
            if tokens is not None:
                items[self._names[index]] = f'"tokens:[{tokens[0]},{tokens[1]})"'
                has_more |= index in self._withdrawn(step)
        if not items:
            return None
        option = ", ".join(f"{_quoted(n)}: [{item}]" for n, item in items.items())
        lines = ", ".join(
            f"{name if _BARE_KEY.fullmatch(name) else _quoted(name)} = [{item}]"
            for name, item in items.items()
        )
        beside = " beside what is withdrawn already" if has_more else ""
        return (
            "put a copy of the shard in its place (on a disk with "
            f"`{roxxel_command(f'format verify {error.path} --repair COPY')}`), or "
            f"train on without these tokens{beside}: give the curriculum "
            f"without={{{option}}}, or under [without] of a config {lines}"
        )


class _RowSpans(NamedTuple):
    """The documents of a batch, row by row.

    `start` and `stop` count tokens of the row's source, and are clipped to the row's
    window. Padding is the document -1. Some documents may have no tokens.
    """

    row: _Integers
    document: _Integers
    start: _Integers
    stop: _Integers


def _by_source(source: _Integers) -> Iterator[tuple[int, _Integers]]:
    """Yield the index of each source that has rows, and its rows, ascending.

    `source` is the index of the source of each row.
    """
    if not source.size:
        return
    order = source.argsort(kind="stable")
    ordered = source[order]
    for which in np.split(order, np.flatnonzero(ordered[1:] != ordered[:-1]) + 1):
        yield int(source[which[0]]), which


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
