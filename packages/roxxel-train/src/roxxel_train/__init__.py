"""A training loop for Flax NNX language models that resumes bit for bit.

`Trainer` joins a curriculum, a model, an optimizer and a loss function into a run. It
compiles one update per batch shape, reads metrics two updates late, and writes
checkpoints in the background. `Logger` is the log of a run, and can be used alone.
`data_state` reads what a run has recorded about its data. From this state any batch of
the run can be computed again.

This package imports each name on first use, so `data_state` does not import JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel_train._log.logger import Logger
    from roxxel_train._run.events import RunSummary
    from roxxel_train._run.folder import data_state
    from roxxel_train._step.loss import TIMING_FIELDS
    from roxxel_train._step.step import ModelState
    from roxxel_train.errors import (
        PREEMPTED_EXIT_CODE,
        BatchRow,
        NonFiniteError,
        Preempted,
        RunMismatchError,
        SettingsDifferError,
    )
    from roxxel_train.trainer import Trainer

__all__ = [
    "PREEMPTED_EXIT_CODE",
    "TIMING_FIELDS",
    "BatchRow",
    "Logger",
    "ModelState",
    "NonFiniteError",
    "Preempted",
    "RunMismatchError",
    "RunSummary",
    "SettingsDifferError",
    "Trainer",
    "data_state",
]

_HOMES = {
    "TIMING_FIELDS": "_step.loss",
    "Logger": "_log.logger",
    "ModelState": "_step.step",
    "RunSummary": "_run.events",
    "Trainer": "trainer",
    "data_state": "_run.folder",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'errors')}")
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
