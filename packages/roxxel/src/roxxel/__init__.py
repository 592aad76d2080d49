"""Pre-train language models in JAX: all public names of Roxxel in one package.

`roxxel` has every public name of five packages, and imports each name on first use.
`import roxxel` therefore imports neither JAX nor these packages:

- `roxxel_format`: token files (`Roxxel`);
- `roxxel_curriculum`: which tokens each step sees (`Phase`, `Curriculum`);
- `roxxel_loader`: batches on the devices (`Dataloader`, `device_stream`), also as
  `roxxel.sharding`;
- `roxxel_ckpt`: checkpoints (`Checkpointer`), also as `roxxel.checkpoint`;
- `roxxel_train`: the loop (`Trainer`).

`roxxel.cli` is the `roxxel` command. `replay` trains a run again without some of its
documents. `sweep` finds the best blend by small runs. `roxxel.config` reads config
files. `roxxel.quickstart` is an example of a whole run.
"""

# ruff: noqa: F403, F405 - `__all__` below has every name once
# pyright: reportWildcardImportFromLibrary=false

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roxxel_ckpt import *
    from roxxel_curriculum import *
    from roxxel_format import *
    from roxxel_loader import *
    from roxxel_train import *

    from roxxel import checkpoint, sharding
    from roxxel.config import load_schedule, parse_schedule, schedule_from
    from roxxel.replaying import check_replay, replay, withdraw
    from roxxel.runs.diff import diff
    from roxxel.runs.run import Run, open_run
    from roxxel.runs.verify import check_verify, verify
    from roxxel.sweeping import sweep

_MEMBERS = (
    "roxxel_format",
    "roxxel_curriculum",
    "roxxel_ckpt",
    "roxxel_train",
    "roxxel_loader",
)
"""The packages in the order of search; only importing `roxxel_loader` imports JAX."""

_OWN = {
    **dict.fromkeys(("Run", "open_run"), "runs.run"),
    **dict.fromkeys(("check_replay", "replay", "withdraw"), "replaying"),
    "sweep": "sweeping",
    "diff": "runs.diff",
    **dict.fromkeys(("check_verify", "verify"), "runs.verify"),
    **dict.fromkeys(("load_schedule", "parse_schedule", "schedule_from"), "config"),
}
"""Names that this package has itself, and the module of each name."""

_LIBRARIES = {
    "ArrowDataset": "pyarrow",
    "HuggingFaceDataset": "datasets",
    "ParquetDataset": "pyarrow",
    "PolarsDataset": "polars",
    "huggingface_stream": "datasets",
}
"""Names that need an optional library, and the library of each name."""

__all__ = [
    "ARITHMETIC_VERSION",
    "DROP",
    "PREEMPTED_EXIT_CODE",
    "REPEAT",
    "STOP",
    "TIMING_FIELDS",
    "ArrowDataset",
    "BatchIterator",
    "BatchRow",
    "BestRule",
    "BucketError",
    "CacheStatus",
    "CachedDataset",
    "CheckpointBucketError",
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointStateLostError",
    "CheckpointTimeoutError",
    "CheckpointUnreadableError",
    "CheckpointWriteError",
    "Checkpointer",
    "ChecksumError",
    "ClusterError",
    "Compaction",
    "ConcatDataset",
    "CorpusPlan",
    "Curriculum",
    "CurriculumError",
    "Dataloader",
    "DataloaderIterator",
    "Dataset",
    "DeviceStream",
    "Documents",
    "Field",
    "FilteredDataset",
    "HuggingFaceDataset",
    "IndexSet",
    "LazyDataset",
    "LeafSpec",
    "LoaderStats",
    "Location",
    "LogWriteError",
    "Logger",
    "MappedBatchDataset",
    "MappedDataset",
    "MixPlan",
    "ModelState",
    "NonFiniteError",
    "Occurrence",
    "ParquetDataset",
    "Permutation",
    "Phase",
    "PhasePlan",
    "Plan",
    "PlanDiff",
    "PolarsDataset",
    "Policy",
    "Preempted",
    "Progress",
    "Proxy",
    "RangeDataset",
    "ResolvedPhase",
    "RestoreReport",
    "RowSource",
    "Roxxel",
    "Run",
    "RunData",
    "RunFolder",
    "RunFolderError",
    "RunMismatchError",
    "RunSummary",
    "SQLiteDataset",
    "SampledDataset",
    "Sampler",
    "SaveRecord",
    "Schedule",
    "SettingsDifferError",
    "ShardError",
    "ShardWriter",
    "ShardingConfig",
    "ShuffledDataset",
    "SilentCorruptionError",
    "SimpleDataset",
    "SlicedDataset",
    "SourcePlan",
    "StateMismatch",
    "StreamStats",
    "StreamingDataset",
    "TokenReader",
    "TokenizerBackend",
    "Trainer",
    "VerifyReport",
    "Windows",
    "Withdrawal",
    "WithdrawnPlan",
    "WriteArguments",
    "WriteSummary",
    "ZipDataset",
    "check_replay",
    "check_verify",
    "checkpoint",
    "data_state",
    "describe_rows",
    "device_stream",
    "diff",
    "global_to_host_array",
    "host_to_global_device_array",
    "huggingface_stream",
    "import_safetensors",
    "load_schedule",
    "make_custom_sharding_config",
    "make_data_parallel_sharding_config",
    "make_fsdp_sharding_config",
    "make_hybrid_sharding_config",
    "make_key",
    "open_run",
    "parse_schedule",
    "permute",
    "read_description",
    "recorded_sampler",
    "repeat",
    "replay",
    "schedule_from",
    "sharding",
    "sweep",
    "verify",
    "withdraw",
]

if not TYPE_CHECKING:
    # `from roxxel import *` imports every name in `__all__`, so `__all__` omits names
    # whose library is missing. If the spec of a library has no origin, Python has found
    # only a folder of the same name.
    _FOUND = {library: find_spec(library) for library in _LIBRARIES.values()}
    _ABSENT = {name for name, spec in _FOUND.items() if not spec or not spec.origin}
    __all__ = [name for name in __all__ if _LIBRARIES.get(name) not in _ABSENT]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name == "__version__":
        return import_module("importlib.metadata").version("roxxel")
    if name in {"checkpoint", "sharding"}:
        return import_module(f"roxxel.{name}")
    if name in _OWN:
        return getattr(import_module(f"roxxel.{_OWN[name]}"), name)
    if name in _LIBRARIES:
        return getattr(import_module("roxxel_loader"), name)
    if name in __all__:
        for member in map(import_module, _MEMBERS):
            if name in member.__all__:
                globals()[name] = getattr(member, name)
                return globals()[name]
    raise AttributeError(f"module 'roxxel' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*__all__, *_LIBRARIES, "__version__"})
