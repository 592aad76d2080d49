"""Pre-train language models in JAX: everything Roxxel has, under one name.

Every public name of the five packages is here and is imported on first use, so
`import roxxel` is quick and starts no accelerator:

- `roxxel_format`: token files (`Roxxel`);
- `roxxel_curriculum`: which tokens each step sees (`Phase`, `Curriculum`);
- `roxxel_loader`: batches on the devices (`Dataloader`, `device_stream`);
- `roxxel_ckpt`: checkpoints (`Checkpointer`), also as `roxxel.checkpoint`;
- `roxxel_train`: the loop (`Trainer`).

`roxxel.cli` is the `roxxel` command, `roxxel.config` the file that it trains by,
`roxxel.quickstart` a whole run to read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roxxel_ckpt import (
        CheckpointDamagedError,
        Checkpointer,
        CheckpointError,
        CheckpointMismatchError,
        CheckpointNotFoundError,
        CheckpointStateLostError,
        CheckpointTimeoutError,
        CheckpointWriteError,
        LeafSpec,
        RestoreReport,
        SaveRecord,
        default_best_metric,
        read_description,
    )
    from roxxel_curriculum import (
        ARITHMETIC_VERSION,
        DROP,
        REPEAT,
        STOP,
        CorpusPlan,
        Curriculum,
        CurriculumError,
        Field,
        Location,
        MixPlan,
        Permutation,
        Phase,
        PhasePlan,
        Plan,
        PlanDiff,
        Policy,
        ResolvedPhase,
        Sampler,
        Schedule,
        SourcePlan,
        StateMismatch,
        Windows,
        load_schedule,
        make_key,
        parse_schedule,
        permute,
        repeat,
        schedule_from,
    )
    from roxxel_format import (
        ChecksumError,
        Roxxel,
        Shard,
        ShardError,
        ShardWriter,
        TokenReader,
        VerifyReport,
        WriteSummary,
    )
    from roxxel_loader import (
        CachedDataset,
        ConcatDataset,
        Dataloader,
        DataloaderIterator,
        Dataset,
        DeviceStream,
        FilteredDataset,
        LazyDataset,
        LoaderStats,
        MappedDataset,
        RangeDataset,
        RowSource,
        SampledDataset,
        ShardingConfig,
        ShuffledDataset,
        SimpleDataset,
        SlicedDataset,
        StreamingDataset,
        StreamStats,
        ZipDataset,
        describe_rows,
        device_stream,
        host_to_global_device_array,
        make_custom_sharding_config,
        make_data_parallel_sharding_config,
        make_fsdp_sharding_config,
        make_hybrid_sharding_config,
    )
    from roxxel_train import (
        PREEMPTED_EXIT_CODE,
        TIMING_FIELDS,
        BatchRow,
        Logger,
        ModelState,
        NonFiniteError,
        Preempted,
        RunMismatchError,
        RunSummary,
        Trainer,
    )

    from roxxel import checkpoint

_MEMBERS = (
    "roxxel_format",
    "roxxel_curriculum",
    "roxxel_loader",
    "roxxel_ckpt",
    "roxxel_train",
)
"""Each stands on those before it, so that what needs no JAX is found without it."""

__all__ = [
    "ARITHMETIC_VERSION",
    "DROP",
    "PREEMPTED_EXIT_CODE",
    "REPEAT",
    "STOP",
    "TIMING_FIELDS",
    "BatchRow",
    "CachedDataset",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointStateLostError",
    "CheckpointTimeoutError",
    "CheckpointWriteError",
    "Checkpointer",
    "ChecksumError",
    "ConcatDataset",
    "CorpusPlan",
    "Curriculum",
    "CurriculumError",
    "Dataloader",
    "DataloaderIterator",
    "Dataset",
    "DeviceStream",
    "Field",
    "FilteredDataset",
    "LazyDataset",
    "LeafSpec",
    "LoaderStats",
    "Location",
    "Logger",
    "MappedDataset",
    "MixPlan",
    "ModelState",
    "NonFiniteError",
    "Permutation",
    "Phase",
    "PhasePlan",
    "Plan",
    "PlanDiff",
    "Policy",
    "Preempted",
    "RangeDataset",
    "ResolvedPhase",
    "RestoreReport",
    "RowSource",
    "Roxxel",
    "RunMismatchError",
    "RunSummary",
    "SampledDataset",
    "Sampler",
    "SaveRecord",
    "Schedule",
    "Shard",
    "ShardError",
    "ShardWriter",
    "ShardingConfig",
    "ShuffledDataset",
    "SimpleDataset",
    "SlicedDataset",
    "SourcePlan",
    "StateMismatch",
    "StreamStats",
    "StreamingDataset",
    "TokenReader",
    "Trainer",
    "VerifyReport",
    "Windows",
    "WriteSummary",
    "ZipDataset",
    "checkpoint",
    "default_best_metric",
    "describe_rows",
    "device_stream",
    "host_to_global_device_array",
    "load_schedule",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
    "make_key",
    "parse_schedule",
    "permute",
    "read_description",
    "repeat",
    "schedule_from",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        return import_module("importlib.metadata").version("roxxel")
    value = _find(name) if name in __all__ else None
    if value is None:
        raise AttributeError(f"module 'roxxel' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return [*__all__, "__version__"]


def _find(name: str) -> Any:
    if name == "checkpoint":
        return import_module("roxxel.checkpoint")
    for member in _MEMBERS:
        module = import_module(member)
        if name in module.__all__:
            return getattr(module, name)
    return None
