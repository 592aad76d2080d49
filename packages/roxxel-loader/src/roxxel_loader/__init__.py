"""Any dataset, or any function from step to rows, onto a JAX mesh without a wait.

`device_stream` takes a function of the step, such as a curriculum's sampler, and gives
global arrays, of which each process builds only the parts its own devices hold.
"""

from ._device import DeviceStream, RowSource, StreamStats, device_stream
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
    "DeviceStream",
    "RowSource",
    "ShardingConfig",
    "StreamStats",
    "describe_rows",
    "device_stream",
    "host_to_global_device_array",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
]
