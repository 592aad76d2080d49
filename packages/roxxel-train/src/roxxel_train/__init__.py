"""A training loop for Flax NNX language models that resumes bit for bit.

`Trainer` joins a curriculum, a model, an optimizer and a loss function into a run: one
compiled update per shape of batch, metrics read late, and checkpoints written in the
background. `Logger` is the log of a run, and can be used alone.
"""

from roxxel_train._log.logger import Logger
from roxxel_train._model_state import ModelState
from roxxel_train._observe.timing import TIMING_FIELDS
from roxxel_train._summary import RunSummary
from roxxel_train.errors import (
    PREEMPTED_EXIT_CODE,
    BatchRow,
    NonFiniteError,
    Preempted,
    RunMismatchError,
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
    "Trainer",
]
