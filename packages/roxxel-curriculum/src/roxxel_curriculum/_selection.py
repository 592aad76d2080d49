"""The rows and columns of a batch that a caller selects."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = "slice | npt.ArrayLike"


def checked_rows(rows: Rows, batch_size: int) -> slice | npt.NDArray[np.int64]:
    """Return rows as a slice or as an int64 array to index with.

    Raises:
        IndexError: A row is outside `[0, batch_size)`.
        TypeError: The rows are neither a slice nor integers.
    """
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
    """Return the first column and the number of columns.

    Args:
        columns: Slice without a step; None for all columns.
        seq_len: Number of columns of the batch.

    Raises:
        TypeError: `columns` is not a slice.
        ValueError: The slice has a step.
    """
    if columns is None:
        return 0, seq_len
    if not isinstance(cast("Any", columns), slice):
        raise TypeError(f"columns must be a slice or None, got {columns!r}")
    start, stop, step = columns.indices(seq_len)
    if step != 1:
        raise ValueError(f"columns must be a slice without a step, got {columns}")
    return start, max(0, stop - start)
