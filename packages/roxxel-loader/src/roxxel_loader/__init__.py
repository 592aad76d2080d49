"""Batches of any dataset, or of any function of the step, on a JAX mesh.

`Dataloader` makes batches of any dataset: lazily mapped, shuffled without an index
array, loaded by threads or by any executor, in an order that depends on integers alone.
`device_stream` makes global arrays from a function of the step, such as a curriculum's
sampler. Each process builds only the parts that its own devices hold.

    >>> from roxxel_loader import Dataloader, SimpleDataset
    >>> for batch in Dataloader(SimpleDataset([1, 2, 3, 4]), batch_size=2):
    ...     print(batch)
    [1 2]
    [3 4]
"""

from ._dataloader import Dataloader
from ._device_stream import DeviceStream, StreamStats, device_stream
from ._iteration import DataloaderIterator, LoaderStats
from ._row_source import RowSource
from .datasets import (
    CachedDataset,
    ConcatDataset,
    Dataset,
    FilteredDataset,
    LazyDataset,
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
    host_to_global_device_array,
    make_custom_sharding_config,
    make_data_parallel_sharding_config,
    make_fsdp_sharding_config,
    make_hybrid_sharding_config,
)

__all__ = [
    "CachedDataset",
    "ConcatDataset",
    "Dataloader",
    "DataloaderIterator",
    "Dataset",
    "DeviceStream",
    "FilteredDataset",
    "LazyDataset",
    "LoaderStats",
    "MappedDataset",
    "RangeDataset",
    "RowSource",
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
    "host_to_global_device_array",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
]
