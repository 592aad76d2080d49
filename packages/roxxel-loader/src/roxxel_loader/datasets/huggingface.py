"""Hugging Face datasets, with an index or streamed; the extra `huggingface`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import datasets as hf  # noqa: TC002 - its absence is told here
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

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return self._dataset[check_index(index, len(self._dataset))]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, read together."""
        size = len(self._dataset)
        columns = self._dataset[[check_index(index, size) for index in indices]]
        names = list(columns)
        return [
            dict(zip(names, row, strict=True))
            for row in zip(*(columns[name] for name in names), strict=True)
        ]


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
