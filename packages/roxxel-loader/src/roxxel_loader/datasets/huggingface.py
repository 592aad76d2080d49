"""Hugging Face datasets, with an index or streamed; the extra `huggingface`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import datasets as hf  # noqa: TC002 - its absence is told here
    import pyarrow as pa  # which datasets needs
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_loader.datasets.huggingface needs datasets: "
        'pip install "roxxel-loader[huggingface]"',
        name="datasets",
    ) from error

from ._dataset import check_index
from ._fluent import LazyDataset
from ._streaming import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class HuggingFaceDataset(LazyDataset[dict[str, Any]]):
    """The rows of a map-style Hugging Face dataset, each a dict from column to value.

    Rows are read together, but for those of a dataset with nulls: there the library
    turns integers and doubles that it formats beside a null into 32-bit floats, so a
    row would depend on its neighbours. Such rows are read alone, ten times as slowly;
    a null number is then NaN, any other None.

    Args:
        dataset: The dataset, such as `datasets.load_dataset(..., split="train")` gives.
            Its format is set to numpy unless it has one already.
        columns: The columns wanted; by default all.
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

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self._read([check_index(index, len(self._dataset))])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, read together where there are no nulls."""
        size = len(self._dataset)
        positions = [check_index(index, size) for index in indices]
        if self._alone:
            return [self._read([position])[0] for position in positions]
        return self._read(positions)

    def _read(self, positions: list[int]) -> list[dict[str, Any]]:
        columns = self._dataset[positions]
        names = list(columns)
        return [
            dict(zip(names, row, strict=True))
            for row in zip(*(columns[name] for name in names), strict=True)
        ]


def _has_null(array: pa.Array) -> bool:
    """Return whether there is a null in an array or inside one of its values."""
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
        dataset: The dataset, as from `datasets.load_dataset(..., streaming=True)`.
            Resuming uses its own `skip`. Do not shuffle it by its own method: use
            `StreamingDataset.shuffle`, whose order does not depend on the version.
    """

    def seek(start: int) -> Iterator[dict[str, Any]]:
        return iter(dataset.skip(start) if start else dataset)

    return StreamingDataset(lambda: iter(dataset), seek)
