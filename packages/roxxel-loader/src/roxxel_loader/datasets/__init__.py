"""Datasets: items by index, lazy datasets over them, and streams."""

from ._dataset import Dataset
from ._lazy import (
    CachedDataset,
    ConcatDataset,
    FilteredDataset,
    LazyDataset,
    MappedBatchDataset,
    MappedDataset,
    RangeDataset,
    SampledDataset,
    ShuffledDataset,
    SimpleDataset,
    SlicedDataset,
    ZipDataset,
)
from ._streaming import StreamingDataset

__all__ = [
    "CachedDataset",
    "ConcatDataset",
    "Dataset",
    "FilteredDataset",
    "LazyDataset",
    "MappedBatchDataset",
    "MappedDataset",
    "RangeDataset",
    "SampledDataset",
    "ShuffledDataset",
    "SimpleDataset",
    "SlicedDataset",
    "StreamingDataset",
    "ZipDataset",
]
