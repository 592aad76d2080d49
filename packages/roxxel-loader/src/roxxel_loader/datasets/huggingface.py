"""Hugging Face datasets, with an index or streamed; the extra `huggingface`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import datasets as hf  # noqa: TC002 - an absent library is an error here
    import pyarrow as pa  # which datasets needs
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_loader.datasets.huggingface needs datasets: "
        'pip install "roxxel-loader[huggingface]"',
        name="datasets",
    ) from error

from ._dataset import as_rows
from ._lazy import BulkDataset
from ._streaming import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class HuggingFaceDataset(BulkDataset[dict[str, Any]]):
    """The rows of a map-style Hugging Face dataset, each a dict from column to value.

    A dataset without nulls is read many rows at a time. A dataset with nulls is read
    one row at a time, ten times as slowly: the library turns integers and doubles into
    32-bit floats where it formats them together with a null, so a row would depend on
    its neighbours. A null number becomes NaN; any other null becomes None.

    Args:
        dataset: The dataset, such as `datasets.load_dataset(..., split="train")`
            returns. If it has no format, its format is set to numpy.
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
    """Return whether an array, or a list or struct in it, contains a null."""
    if array.null_count:
        return True
    if isinstance(array, pa.ExtensionArray):
        return _has_null(array.storage)
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        return _has_null(array.flatten())
    return isinstance(array, pa.StructArray) and any(map(_has_null, array.flatten()))


def huggingface_stream(dataset: hf.IterableDataset) -> StreamingDataset[dict[str, Any]]:
    """Return a streamed Hugging Face dataset as a `StreamingDataset`.

    Args:
        dataset: The dataset, such as `datasets.load_dataset(..., streaming=True)`
            returns. Resuming calls `dataset.skip`. To shuffle, call
            `StreamingDataset.shuffle` and not `dataset.shuffle`, whose order depends on
            the version of the library.
    """

    def seek(start: int) -> Iterator[dict[str, Any]]:
        return iter(dataset.skip(start) if start else dataset)

    return StreamingDataset(lambda: iter(dataset), seek)
