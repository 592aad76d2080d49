"""The rows of a Polars data frame as a dataset; needs the extra `polars`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store import missing_extra

try:
    import polars as pl
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_loader.datasets.polars", "polars", "roxxel-loader", "polars"
    ) from error

from ._dataset import as_rows
from ._lazy import BulkDataset

if TYPE_CHECKING:
    from collections.abc import Sequence


class PolarsDataset(BulkDataset[dict[str, Any]]):
    """The rows of a data frame, each a dict from column to value.

    Values of list and array columns are numpy arrays, which `Dataloader` can stack; a
    list with a null is a list with None, as a null is None.

    Args:
        frame: The data frame; a lazy frame is collected by the constructor.
        columns: Names of the columns to read; by default all.

    Raises:
        polars.exceptions.ColumnNotFoundError: A column is not in the frame.

    Example:
        >>> PolarsDataset(pl.DataFrame({"x": [1, 2], "y": ["a", "b"]}))[1]
        {'x': 2, 'y': 'b'}
    """

    def __init__(
        self, frame: pl.DataFrame | pl.LazyFrame, columns: Sequence[str] | None = None
    ) -> None:
        if columns is not None:
            frame = frame.select(list(columns))
        self._frame = frame.collect() if isinstance(frame, pl.LazyFrame) else frame

    def __len__(self) -> int:
        return len(self._frame)

    def _load(self, indices: list[int]) -> list[dict[str, Any]]:
        part = self._frame[indices]
        return as_rows({name: _values(part[name]) for name in part.columns})


def _values(column: pl.Series) -> list[Any]:
    if isinstance(column.dtype, pl.List | pl.Array):
        return [*map(_array, column)]
    return column.to_list()


def _array(cell: pl.Series | None) -> Any:
    if cell is None:
        return None
    # NumPy would make NaN of a null, and floats of the integers beside it.
    return cell.to_list() if cell.null_count() else cell.to_numpy()
