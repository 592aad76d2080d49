"""A training loop for Flax NNX language models that never waits and never forgets.

`Trainer` joins a curriculum, a model, an optimizer and a loss into a run: one compiled
update per shape of batch, metrics fetched late, checkpoints in the background, and a
restart that goes on as if nothing had happened. `Logger` is the run's log, and can be
used alone.
"""

from roxxel_train._log import Logger
from roxxel_train._metrics import TIMING_FIELDS
from roxxel_train._model_state import ModelState
from roxxel_train._summary import RunSummary
from roxxel_train._trainer import Trainer
from roxxel_train.errors import (
    PREEMPTED_EXIT_CODE,
    BatchRow,
    NonFiniteError,
    Preempted,
    RunMismatchError,
)

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
    "Trainer",
]
