"""The rows of a Polars data frame as a dataset; the extra `polars`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import polars as pl
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_loader.datasets.polars needs polars: "
        'pip install "roxxel-loader[polars]"',
        name="polars",
    ) from error

from ._dataset import check_index
from ._fluent import LazyDataset

if TYPE_CHECKING:
    from collections.abc import Sequence


class PolarsDataset(LazyDataset[dict[str, Any]]):
    """The rows of a data frame, each a dict from column to value.

    Values of list and array columns are numpy arrays, so that they stack.

    Args:
        frame: The data frame; a lazy one is collected here, once.
        columns: The columns wanted; by default all.

    Raises:
        polars.exceptions.ColumnNotFoundError: A column is not in the frame.
    """

    def __init__(
        self, frame: pl.DataFrame | pl.LazyFrame, columns: Sequence[str] | None = None
    ) -> None:
        if columns is not None:
            frame = frame.select(list(columns))
        self._frame = frame.collect() if isinstance(frame, pl.LazyFrame) else frame

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, gathered column by column."""
        positions = [check_index(index, len(self._frame)) for index in indices]
        part = self._frame[positions]
        columns = [_values(part[name]) for name in part.columns]
        return [
            dict(zip(part.columns, row, strict=True))
            for row in zip(*columns, strict=True)
        ]


def _values(column: pl.Series) -> list[Any]:
    if isinstance(column.dtype, pl.List | pl.Array):
        return [None if cell is None else cell.to_numpy() for cell in column]
    return column.to_list()
