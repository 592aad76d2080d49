"""Presets of meshes, and conversions between local rows and global arrays."""

from .placement import (
    describe_rows,
    global_to_host_array,
    host_to_global_device_array,
)
from .presets import (
    ShardingConfig,
    make_custom_sharding_config,
    make_data_parallel_sharding_config,
    make_fsdp_sharding_config,
    make_hybrid_sharding_config,
)

__all__ = [
    "ShardingConfig",
    "describe_rows",
    "global_to_host_array",
    "host_to_global_device_array",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
]
