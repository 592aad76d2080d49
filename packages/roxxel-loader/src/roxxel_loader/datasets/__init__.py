"""Datasets: items by index, and the lazy ones over them."""

from ._cached import CachedDataset
from ._concat import ConcatDataset
from ._dataset import Dataset
from ._filtered import FilteredDataset
from ._fluent import LazyDataset
from ._mapped import MappedDataset
from ._sampled import SampledDataset
from ._shuffled import ShuffledDataset
from ._simple import RangeDataset, SimpleDataset
from ._sliced import SlicedDataset
from ._streaming import StreamingDataset
from ._zipped import ZipDataset

__all__ = [
    "CachedDataset",
    "ConcatDataset",
    "Dataset",
    "FilteredDataset",
    "LazyDataset",
    "MappedDataset",
    "RangeDataset",
    "SampledDataset",
    "ShuffledDataset",
    "SimpleDataset",
    "SlicedDataset",
    "StreamingDataset",
    "ZipDataset",
]
