"""Hugging Face datasets, indexed or streamed; needs the extra `huggingface`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roxxel_store import missing_extra

try:
    import datasets as hf  # noqa: TC002 - an absent library is an error here
    import pyarrow as pa  # a dependency of the library `datasets`
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_loader.datasets.huggingface",
        *("datasets", "roxxel-loader", "huggingface"),
    ) from error

from ._dataset import as_rows
from ._lazy import BulkDataset
from ._streaming import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class HuggingFaceDataset(BulkDataset[dict[str, Any]]):
    """The rows of a map-style Hugging Face dataset, each a dict from column to value.

    A dataset with nulls is read one row at a time, which is ten times slower than
    reading many rows in one call. Rows that are read in one call depend on each other:
    the library converts integers and doubles to 32-bit floats if it formats them
    together with a null. A null number becomes NaN; any other null becomes None.

    Args:
        dataset: The dataset, such as `datasets.load_dataset(..., split="train")`
            returns. A dataset without a format is read in the format numpy.
        columns: Names of the columns to read; by default all.

    Example:
        >>> dataset = hf.Dataset.from_dict({"x": [1, 2], "y": ["a", "b"]})
        >>> row = HuggingFaceDataset(dataset)[1]
        >>> int(row["x"]), str(row["y"])
        (2, 'b')
    """

    def __init__(
        self, dataset: hf.Dataset, columns: Sequence[str] | None = None
    ) -> None:
        if columns is not None:
            dataset = dataset.select_columns(list(columns))
        if dataset.format["type"] is None:
            dataset = dataset.with_format("numpy")
        self._dataset = dataset
        table = dataset.data
        self._alone = any(
            _has_null(chunk)
            for name in dataset.column_names
            for chunk in table.column(name).chunks
        )

    def __len__(self) -> int:
        return len(self._dataset)

    def _load(self, indices: list[int]) -> list[dict[str, Any]]:
        if self._alone:
            return [as_rows(self._dataset[[index]])[0] for index in indices]
        return as_rows(self._dataset[indices])


def _has_null(array: pa.Array) -> bool:
    """Return whether an array contains a null, nested lists and structs included."""
    if array.null_count:
        return True
    if isinstance(array, pa.ExtensionArray):
        return _has_null(array.storage)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _has_null(array.flatten())
    return isinstance(array, pa.StructArray) and any(map(_has_null, array.flatten()))


def huggingface_stream(dataset: hf.IterableDataset) -> StreamingDataset[dict[str, Any]]:
    """Return a streamed Hugging Face dataset as a `StreamingDataset`.

    To shuffle, call `StreamingDataset.shuffle`. The order of `dataset.shuffle` depends
    on the version of the library. Resuming calls `dataset.skip`.

    Args:
        dataset: The dataset, such as `datasets.load_dataset(..., streaming=True)`
            returns.
    """

    def seek(start: int) -> Iterator[dict[str, Any]]:
        return iter(dataset.skip(start) if start else dataset)

    return StreamingDataset(lambda: iter(dataset), seek)
