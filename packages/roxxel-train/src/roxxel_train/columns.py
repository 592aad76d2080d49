"""The numbers of a run's log, read in one pass into columns.

A dict of a row takes 4 kB, so the rows of a long run do not fit into memory; a number
in a column takes 8 bytes. `benchmarks/report_rows.py` prints time and memory of a
report of 10^4, 10^5 and 10^6 rows.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_store.lines import NOT_NUMBERS
from roxxel_store.records import GREATEST_NUMBER, is_count, number

from roxxel_train.starts import time_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

TIMED = ("step_s", "wait_s", "compile_s", "eval_s", "save_s")
"""Fields of a row with seconds."""

_NUMBERS = frozenset({int, float})

BY_SOURCE = ("tokens_by_source", "planned_tokens_by_source")
"""Fields whose values by source become columns."""


_AT_A_TIME = 1024
"""Number of rows that become columns at once: NumPy is faster by columns than by
values.
"""


_BLOCK = 2**16


class _Numbers:
    """A growing array.

    It grows by blocks that never move: thirty arrays that grow in turn, each in place,
    leave holes as large as half of them. A block is far longer than a row's objects,
    which could not be freed between small ones.
    """

    def __init__(self, dtype: type[np.float64 | np.int64]) -> None:
        self._dtype = dtype
        self._blocks: list[npt.NDArray[Any]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, values: npt.NDArray[Any]) -> None:
        while len(values):
            used = self._count % _BLOCK
            if not used:
                self._blocks.append(np.empty(_BLOCK, self._dtype))
            added = values[: _BLOCK - used]
            self._blocks[-1][used : used + len(added)] = added
            self._count += len(added)
            values = values[len(added) :]

    def read(self) -> npt.NDArray[Any]:
        """Return a copy of the values."""
        blocks = [np.zeros(0, self._dtype), *self._blocks]
        return np.concatenate(blocks)[: self._count]


class _Column:
    """The values of some rows; `_rows` is None while they are the first rows."""

    def __init__(self) -> None:
        self._values = _Numbers(np.float64)
        self._rows: _Numbers | None = None

    def add(self, rows: npt.NDArray[np.int64], values: Floats) -> None:
        """Add the values of some rows."""
        count = len(self._values)
        is_next = rows[0] == count and rows[-1] == count + len(rows) - 1
        if self._rows is None and not is_next:
            self._rows = _Numbers(np.int64)
            self._rows.add(np.arange(count))
        if self._rows is not None:
            self._rows.add(rows)
        self._values.add(values)

    def read(self) -> tuple[slice | npt.NDArray[np.int64], Floats]:
        """Return the rows, in order, as an index, and their values."""
        values = self._values.read()
        if self._rows is None:
            return slice(len(values)), values
        rows = self._rows.read()
        order = np.argsort(rows, kind="stable")
        return rows[order], values[order]

    def full(self, num_rows: int, missing: float) -> Floats:
        """Return a value for each row; `missing` where a row has none."""
        rows, values = self.read()
        if len(values) == num_rows:
            return values
        full = np.full(num_rows, missing)
        full[rows] = values
        return full


class Table:
    """The numbers of the rows of one kind, by field; NaN stands for a gap.

    Example:
        >>> table = Table()
        >>> table.add({"step": 3, "loss": 2.5})
        >>> table.close()
        >>> table.steps, table.full("loss", 0.0)
        (array([3]), array([2.5]))
    """

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []
        self._steps = _Numbers(np.int64)
        self._columns: dict[str, _Column] = {}
        self._counts: dict[str, dict[str, _Column]] = {name: {} for name in BY_SOURCE}

    def add(self, row: dict[str, Any]) -> None:
        """Add a row; values that are no numbers are left out."""
        self._waiting.append(row)
        if len(self._waiting) == _AT_A_TIME:
            self.close()

    def close(self) -> None:
        """Convert the last rows; call this method after the last `add`."""
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        at = np.arange(len(self), len(self) + len(rows))
        for part, columns in _by_names(rows, at):
            for name, values in columns.items():
                self._take(name, part, values)
        self._steps.add(np.array([row["step"] for row in rows], np.int64))

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The step of each row."""
        return self._steps.read()

    def sources(self, name: str) -> list[str]:
        """Return the sources that a field of `BY_SOURCE` counts."""
        return list(self._counts[name])

    def counted(self, name: str) -> npt.NDArray[np.int64]:
        """Return the indices of the rows with a count in a field of `BY_SOURCE`."""
        is_counted = np.zeros(len(self), np.bool_)
        for column in self._counts[name].values():
            is_counted[column.read()[0]] = True
        return np.flatnonzero(is_counted)

    def full(self, name: str, missing: float) -> Floats:
        """Return a value for each row; `missing` where a row has no such field."""
        column = self._columns.get(name, _Column())
        return column.full(len(self), missing)

    def full_counts(self, name: str, source: str) -> Floats:
        """Return the count of a source in each row; NaN where a row has none."""
        return self._counts[name][source].full(len(self), math.nan)

    def total(self, name: str) -> float:
        """Return the sum of a field over all rows, without gaps."""
        return float(np.nansum(self.full(name, 0.0)))

    def fields(self) -> list[str]:
        """Return the names of the fields, except `"time"` and those in `BY_SOURCE`."""
        return [name for name in self._columns if name != "time"]

    def values(self, name: str) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the steps and the values of the rows that have a field."""
        rows, values = self._columns.get(name, _Column()).read()
        return self.steps[rows], values

    def last(self, name: str) -> float | None:
        """Return the newest value of a field; None for a gap, or without a value."""
        _, values = self.values(name)
        return None if not len(values) or math.isnan(values[-1]) else float(values[-1])

    def _take(
        self, name: str, at: npt.NDArray[np.int64], values: Sequence[Any]
    ) -> None:
        """Append the values of one field of some rows."""
        if name == "step":
            return
        if name in self._counts:
            self._take_counts(name, at, values)
            return
        if name == "time":
            times = [time_of(str(value)) for value in values]
            floats = np.array([math.nan if x is None else x for x in times])
            self._columns.setdefault(name, _Column()).add(at, floats)
            return
        kinds = {*map(type, values)}
        if kinds <= _NUMBERS:
            with suppress(OverflowError):
                floats = np.array(values, np.float64)
                floats[~(np.abs(floats) < GREATEST_NUMBER)] = math.nan
                self._columns.setdefault(name, _Column()).add(at, floats)
                return
        if kinds <= {dict} or (
            kinds == {str} and NOT_NUMBERS.keys().isdisjoint(values)
        ):
            return
        kept = [
            index
            for index, value in enumerate(values)
            if type(value) in _NUMBERS or (type(value) is str and value in NOT_NUMBERS)
        ]
        if kept:
            found = [number(values[index]) for index in kept]
            floats = np.array([math.nan if x is None else x for x in found], np.float64)
            self._columns.setdefault(name, _Column()).add(at[kept], floats)

    def _take_counts(
        self, name: str, at: npt.NDArray[np.int64], values: Sequence[Any]
    ) -> None:
        """Append the counts by source of some rows."""
        kept = values
        if {*map(type, values)} != {dict}:
            has_counts = np.array([type(each) is dict for each in values])
            kept, at = [each for each in values if type(each) is dict], at[has_counts]
        if not kept:
            return
        for rows, columns in _by_names(kept, at):
            for source, counts in columns.items():
                self._take_count(self._counts[name], source, rows, counts)

    @staticmethod
    def _take_count(
        columns: dict[str, _Column],
        source: str,
        rows: npt.NDArray[np.int64],
        counts: Sequence[Any],
    ) -> None:
        """Append the counts of one source; leave out values that are not counts."""
        if {*map(type, counts)} != {int} or not is_count(min(counts)):
            kept = [index for index, count in enumerate(counts) if is_count(count)]
            rows, counts = rows[kept], [counts[index] for index in kept]
        if counts:
            column = columns.setdefault(source, _Column())
            column.add(rows, np.array(counts, np.float64))


def _by_names(
    rows: Sequence[dict[str, Any]], at: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], dict[str, list[Any]]]]:
    """Yield the rows that have the same names together, as a column for each name.

    Args:
        rows: The rows, at least one.
        at: The index of each row.
    """
    names = tuple(rows[0])
    if {*map(len, rows)} == {len(names)}:
        with suppress(KeyError):  # Nearly always, all rows have the same names.
            columns = {name: [*map(itemgetter(name), rows)] for name in names}
            yield at, columns
            return
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(tuple(row), []).append(index)
    for names, indices in groups.items():
        columns = {name: [rows[index][name] for index in indices] for name in names}
        yield at[indices], columns


@dataclass(frozen=True)
class Columns:
    """The rows of a run's result as columns.

    Attributes:
        train: The training rows.
        evaluations: The rows of evaluations.
        newest: The newest row of each kind, `"train"` and `"eval"`, unchanged.
        first_time: Time of the first row, ISO 8601; empty without one.
        last_time: Time of the last row, ISO 8601; empty without one.
        last_text: The last text that `eval_fn` returned; empty without one.
        num_damaged: Number of lines that are no rows.

    Example:
        >>> row = {"kind": "train", "step": 3, "loss": 2.5}
        >>> read_columns([row]).train.last("loss")
        2.5
    """

    train: Table
    evaluations: Table
    newest: Mapping[str, dict[str, Any]]
    first_time: str
    last_time: str
    last_text: str
    num_damaged: int


def read_columns(rows: Iterable[dict[str, Any] | None]) -> Columns:
    """Read rows in one pass, as `RunFolder.each_row` yields them.

    Example:
        >>> read_columns([None]).num_damaged
        1
    """
    tables = {"train": Table(), "eval": Table()}
    newest = dict[str, dict[str, Any]]()
    first_time = last_time = last_text = ""
    num_damaged = 0
    for row in rows:
        if row is None:
            num_damaged += 1
            continue
        if "time" in row:
            last_time = str(row["time"])
            first_time = first_time or last_time
        kind = row["kind"]
        if kind in tables:
            tables[kind].add(row)
            newest[kind] = row
        if kind == "eval" and type(row.get("text")) is str:
            last_text = row["text"]
    for table in tables.values():
        table.close()
    return Columns(
        tables["train"],
        tables["eval"],
        newest,
        first_time,
        last_time,
        last_text,
        num_damaged,
    )
