"""Datasets of Arrow tables, Arrow files and Parquet files; needs the extra `arrow`."""

from __future__ import annotations

import os
import pathlib
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from roxxel_store import missing_extra
from roxxel_store.arguments import as_integer
from roxxel_store.urls import expanded

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_loader.datasets.arrow", "pyarrow", "roxxel-loader", "arrow"
    ) from error


from ._dataset import as_rows, load_parts
from ._lazy import BulkDataset, CachedDataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    Path = str | os.PathLike[str]


class ArrowDataset(BulkDataset[dict[str, Any]]):
    """The rows of an Arrow table, each a dict from column to value.

    Values of list columns are numpy arrays, which `Dataloader` can stack; a list with
    a null is a list with None, as a null is None.

    Args:
        table: A table, or the path of an Arrow IPC file, which is memory-mapped: each
            row is read from the file when the row is loaded.
        columns: Names of the columns to read; by default all.

    Example:
        >>> ArrowDataset(pa.table({"x": [1, 2], "y": [[3, 4], [5, 6]]}))[1]
        {'x': 2, 'y': array([5, 6])}
    """

    def __init__(
        self, table: pa.Table | Path, columns: Sequence[str] | None = None
    ) -> None:
        whole: Any = table
        if not isinstance(table, pa.Table):
            with pa.memory_map(str(expanded(table))) as file:
                whole = pa.ipc.open_file(file).read_all()
        self._table = whole if columns is None else whole.select(list(columns))

    def __len__(self) -> int:
        return self._table.num_rows

    def _load(self, indices: list[int]) -> list[dict[str, Any]]:
        return _rows(self._table, indices)


class ParquetDataset(BulkDataset[dict[str, Any]]):
    """The rows of Parquet files, each a dict from column to value.

    Parquet compresses each row group as a whole, so loading one row reads its row
    group. The most recently used row groups stay in memory. A full shuffle reads a row
    group for almost every row, so shuffle the files beforehand, or write small groups.

    Args:
        paths: One path or several; the rows of the files are concatenated.
        columns: Names of the columns to read; by default all.
        max_groups: Maximum number of row groups kept in memory.

    Raises:
        ValueError: `max_groups` is less than 1, or a file lacks a column.
        TypeError: `max_groups` is not an integer.
        LookupError: When a row is loaded from a file that was replaced.

    Example:
        >>> pq.write_table(pa.table({"x": range(100)}), "rows.parquet")
        >>> dataset = ParquetDataset("rows.parquet")
        >>> len(dataset), dataset[7]
        (100, {'x': 7})
    """

    def __init__(
        self,
        paths: Path | Sequence[Path],
        columns: Sequence[str] | None = None,
        max_groups: int = 4,
    ) -> None:
        max_groups = as_integer("max_groups", max_groups, 1)
        several = [paths] if isinstance(paths, str | os.PathLike) else paths
        groups = _RowGroups([str(expanded(path)) for path in several], columns)
        self._stops = list(accumulate(groups.sizes))
        self._groups = CachedDataset(groups, max_groups)

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def _load(self, indices: list[int]) -> list[dict[str, Any]]:
        return load_parts(
            self._stops,
            indices,
            lambda group, positions: _rows(self._groups[group], positions),
        )


class _RowGroups:
    """The row groups of several files, each read as a table when it is loaded."""

    def __init__(self, paths: list[str], columns: Sequence[str] | None) -> None:
        self._columns = None if columns is None else list(columns)
        self._stamps = {path: _stamp(path) for path in paths}
        self._groups: list[tuple[str, int]] = []
        self.sizes: list[int] = []
        for path in paths:
            metadata = pq.read_metadata(path)
            known = metadata.schema.to_arrow_schema().names
            for name in self._columns or ():
                if name.split(".")[0] not in known:  # "a.b" is field b of column a
                    raise ValueError(f"{path} has no column {name!r}; it has {known}")
            for group in range(metadata.num_row_groups):
                self._groups.append((path, group))
                self.sizes.append(metadata.row_group(group).num_rows)

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int, /) -> pa.Table:
        path, group = self._groups[index]
        if _stamp(path) != self._stamps[path]:
            raise LookupError(
                f"{path} was replaced after its dataset opened; create a new dataset"
            )
        with pq.ParquetFile(path, memory_map=True) as file:
            return file.read_row_group(group, columns=self._columns)


def _stamp(path: str) -> tuple[int, int, int]:
    """Return inode, size and modification time, which change if a file is replaced."""
    found = pathlib.Path(path).stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _rows(table: pa.Table, positions: list[int]) -> list[dict[str, Any]]:
    part = table.take(pa.array(positions, pa.int64()))
    return as_rows({name: _values(part.column(name)) for name in part.column_names})


def _values(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return [*map(_array, column)]
    return column.to_pylist()


def _array(cell: Any) -> Any:
    # NumPy would make NaN of a null, and floats of the integers beside it.
    has_null = not cell.is_valid or cell.values.null_count
    return cell.as_py() if has_null else cell.values.to_numpy(zero_copy_only=False)
