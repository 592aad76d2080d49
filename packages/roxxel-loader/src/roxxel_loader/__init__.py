"""Batches of any dataset, or of any function of the step, on a JAX mesh.

`Dataloader` makes batches of any dataset. Threads or an executor load the items. A
shuffle computes the index of each item from the seed and so builds no index array.
`device_stream` makes global arrays from a function of the step, such as a curriculum's
sampler. Each process builds only the parts that its own devices hold.

    >>> from roxxel_loader import Dataloader, SimpleDataset
    >>> for batch in Dataloader(SimpleDataset([1, 2, 3, 4]), batch_size=2):
    ...     print(batch)
    [1 2]
    [3 4]

The datasets of SQLite, Arrow, Polars and Hugging Face are imported on first use, so
`import roxxel_loader` needs no optional library.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ._dataloader import Dataloader
from ._device_stream import RowSource, device_stream
from ._pipeline.iterate import BatchIterator, Progress, StreamStats
from .datasets import (
    CachedDataset,
    ConcatDataset,
    Dataset,
    FilteredDataset,
    LazyDataset,
    MappedBatchDataset,
    MappedDataset,
    RangeDataset,
    SampledDataset,
    ShuffledDataset,
    SimpleDataset,
    SlicedDataset,
    StreamingDataset,
    ZipDataset,
)
from .sharding import (
    ShardingConfig,
    describe_rows,
    global_to_host_array,
    host_to_global_device_array,
    make_custom_sharding_config,
    make_data_parallel_sharding_config,
    make_fsdp_sharding_config,
    make_hybrid_sharding_config,
)

if TYPE_CHECKING:
    from .datasets.arrow import ArrowDataset, ParquetDataset
    from .datasets.huggingface import HuggingFaceDataset, huggingface_stream
    from .datasets.polars import PolarsDataset
    from .datasets.sqlite import SQLiteDataset

# `Dataloader` and `device_stream` share one iterator class; these are its aliases.
DataloaderIterator = BatchIterator
DeviceStream = BatchIterator
LoaderStats = StreamStats

_MODULES = {
    "ArrowDataset": "arrow",
    "HuggingFaceDataset": "huggingface",
    "ParquetDataset": "arrow",
    "PolarsDataset": "polars",
    "SQLiteDataset": "sqlite",
    "huggingface_stream": "huggingface",
}
"""Maps a public name to the module of `datasets` that defines the name."""

_LIBRARIES = {"arrow": "pyarrow", "huggingface": "datasets", "polars": "polars"}
"""Maps a module of `datasets` to the optional library that the module imports."""

__all__ = [
    "ArrowDataset",
    "BatchIterator",
    "CachedDataset",
    "ConcatDataset",
    "Dataloader",
    "DataloaderIterator",
    "Dataset",
    "DeviceStream",
    "FilteredDataset",
    "HuggingFaceDataset",
    "LazyDataset",
    "LoaderStats",
    "MappedBatchDataset",
    "MappedDataset",
    "ParquetDataset",
    "PolarsDataset",
    "Progress",
    "RangeDataset",
    "RowSource",
    "SQLiteDataset",
    "SampledDataset",
    "ShardingConfig",
    "ShuffledDataset",
    "SimpleDataset",
    "SlicedDataset",
    "StreamStats",
    "StreamingDataset",
    "ZipDataset",
    "describe_rows",
    "device_stream",
    "global_to_host_array",
    "host_to_global_device_array",
    "huggingface_stream",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
]

if not TYPE_CHECKING:
    # `from roxxel_loader import *` would fail if `__all__` had a name whose library is
    # not installed. A plain folder with the name of a library has a spec without an
    # origin.
    _FOUND = {name: find_spec(library) for name, library in _LIBRARIES.items()}
    _ABSENT = {name for name, spec in _FOUND.items() if not spec or not spec.origin}
    __all__ = [name for name in __all__ if _MODULES.get(name) not in _ABSENT]


def __getattr__(name: str) -> Any:
    """Import a dataset of another library on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'roxxel_loader' has no attribute {name!r}")
    module = import_module(f"roxxel_loader.datasets.{_MODULES[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]


def __dir__() -> list[str]:
    """Return all names, including datasets whose library is not installed."""
    return sorted({*__all__, *_MODULES})
