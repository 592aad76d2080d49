"""Arrow tables, Arrow files and Parquet files as datasets; the extra `arrow`."""

from __future__ import annotations

import pathlib
import threading
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_loader.datasets.arrow needs pyarrow: "
        'pip install "roxxel-loader[arrow]"',
        name="pyarrow",
    ) from error

from ._dataset import check_index
from ._fluent import LazyDataset

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    Path = str | os.PathLike[str]


class ArrowDataset(LazyDataset[dict[str, Any]]):
    """The rows of an Arrow table, each a dict from column to value.

    Values of list columns are numpy arrays, so that they stack.

    Args:
        table: A table, or the path of an Arrow IPC file, which is mapped into memory
            and not read before its rows are.
        columns: The columns wanted; by default all.
    """

    def __init__(
        self, table: pa.Table | Path, columns: Sequence[str] | None = None
    ) -> None:
        whole: Any = table
        if not isinstance(table, pa.Table):
            with pa.memory_map(str(table)) as file:
                whole = pa.ipc.open_file(file).read_all()
        self._table = whole if columns is None else whole.select(list(columns))

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, gathered column by column."""
        size = len(self)
        return _rows(self._table, [check_index(index, size) for index in indices])


class ParquetDataset(LazyDataset[dict[str, Any]]):
    """The rows of Parquet files, each a dict from column to value.

    Parquet is compressed by row group, so a row costs the reading of its group. The
    groups used last are kept; order or shuffle such that neighbours are asked for
    together, or write small groups.

    Args:
        paths: One file, or several that follow each other.
        columns: The columns wanted; by default all.
        max_groups: Row groups kept in memory.

    Raises:
        ValueError: No group is to be kept, or a file has no such column.
    """

    def __init__(
        self,
        paths: Path | Sequence[Path],
        columns: Sequence[str] | None = None,
        max_groups: int = 4,
    ) -> None:
        if max_groups < 1:
            raise ValueError(f"max_groups is {max_groups}; keep 1 or more")
        several = paths if isinstance(paths, list | tuple) else [paths]
        self._paths = [str(path) for path in several]
        self._columns = None if columns is None else list(columns)
        self._max_groups = max_groups
        self._groups: list[tuple[int, int]] = []
        sizes: list[int] = []
        self._stamps = [_stamp(path) for path in self._paths]
        for number, path in enumerate(self._paths):
            metadata = pq.read_metadata(path)
            known = metadata.schema.to_arrow_schema().names
            for name in self._columns or ():
                if name.split(".")[0] not in known:  # "a.b" is in a column a
                    raise ValueError(f"{path} has no column {name!r}; it has {known}")
            for group in range(metadata.num_row_groups):
                self._groups.append((number, group))
                sizes.append(metadata.row_group(group).num_rows)
        self._stops = list(accumulate(sizes))
        self._kept: dict[int, pa.Table] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`; each row group is read at most once.

        Raises:
            LookupError: A file was replaced since it was opened.
        """
        by_group: dict[int, list[int]] = {}
        for position, index in enumerate(indices):
            group = bisect_right(self._stops, check_index(index, len(self)))
            by_group.setdefault(group, []).append(position)
        items: list[dict[str, Any]] = [{} for _ in indices]
        for group, positions in by_group.items():
            first = self._stops[group - 1] if group else 0
            rows = [indices[position] - first for position in positions]
            found = _rows(self._group(group), rows)
            for position, row in zip(positions, found, strict=True):
                items[position] = row
        return items

    def __getstate__(self) -> dict[str, object]:
        state: dict[str, object] = dict(vars(self), _kept={})
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def _group(self, group: int) -> pa.Table:
        with self._lock:
            table = self._kept.pop(group, None)
            if table is not None:
                self._kept[group] = table
                return table
        number, position = self._groups[group]
        if _stamp(self._paths[number]) != self._stamps[number]:
            raise LookupError(
                f"{self._paths[number]} was replaced while it was read; open it again"
            )
        with pq.ParquetFile(self._paths[number], memory_map=True) as file:
            table = file.read_row_group(position, columns=self._columns)
        with self._lock:
            self._kept[group] = table
            while len(self._kept) > self._max_groups:
                del self._kept[next(iter(self._kept))]
        return table


def _stamp(path: str) -> tuple[int, int, int]:
    """Return what changes when another file takes a file's position."""
    found = pathlib.Path(path).stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _rows(table: pa.Table, positions: list[int]) -> list[dict[str, Any]]:
    part = table.take(pa.array(positions, pa.int64()))
    columns = [_values(part.column(name)) for name in part.column_names]
    return [
        dict(zip(part.column_names, row, strict=True))
        for row in zip(*columns, strict=True)
    ]


def _values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return [
            cell.values.to_numpy(zero_copy_only=False) if cell.is_valid else None
            for cell in column
        ]
    return column.to_pylist()
