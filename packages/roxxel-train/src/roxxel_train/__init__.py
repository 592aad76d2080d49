"""A training loop for Flax NNX language models; a run resumes bit for bit.

`Trainer` trains a model over a curriculum. The trainer compiles one update per batch
shape, reads metrics two updates later, and writes checkpoints in the background.
`Logger` writes the log of a run, and can be used alone. `RunFolder` reads the files of
a run. `data_state` reads the recorded data state of a run, from which every past batch
can be computed again.

Each public name is imported on first use, so reading a run does not import JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_curriculum.run_log import TIMING_FIELDS

    from roxxel_train._log.logger import Logger
    from roxxel_train._run.events import RunSummary
    from roxxel_train._step.step import ModelState
    from roxxel_train.errors import (
        PREEMPTED_EXIT_CODE,
        BatchRow,
        ClusterError,
        LogWriteError,
        NonFiniteError,
        Preempted,
        RunFolderError,
        RunMismatchError,
        SettingsDifferError,
        SilentCorruptionError,
    )
    from roxxel_train.run_folder import RunData, RunFolder, data_state
    from roxxel_train.trainer import Trainer

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "TIMING_FIELDS",
    "BatchRow",
    "ClusterError",
    "LogWriteError",
    "Logger",
    "ModelState",
    "NonFiniteError",
    "Preempted",
    "RunData",
    "RunFolder",
    "RunFolderError",
    "RunMismatchError",
    "RunSummary",
    "SettingsDifferError",
    "SilentCorruptionError",
    "Trainer",
    "data_state",
]

_HOMES = {
    "TIMING_FIELDS": "roxxel_curriculum.run_log",
    "Logger": "roxxel_train._log.logger",
    "ModelState": "roxxel_train._step.step",
    "RunData": "roxxel_train.run_folder",
    "RunFolder": "roxxel_train.run_folder",
    "RunSummary": "roxxel_train._run.events",
    "Trainer": "roxxel_train.trainer",
    "data_state": "roxxel_train.run_folder",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(_HOMES.get(name, "roxxel_train.errors"))
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
