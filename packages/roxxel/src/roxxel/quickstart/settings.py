"""What the quickstart decides for the newcomer: lengths, batches, rates, intervals.

Everything is derived from the number of steps that the run was first started with, so
a run that goes on with more steps later finds its past unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_STEPS = 500
"""Steps of a run that was not told otherwise: a few minutes on two processor cores."""

SEPARATOR = 256
"""The token after each document; the tokens below it are the bytes themselves."""

VOCAB_SIZE = SEPARATOR + 1

MIN_STEPS = 2
"""One step for each phase."""

SHORT, LONG = 256, 1024
"""Bytes of context in the first and in the second phase."""

SHORT_BATCH, LONG_BATCH = 8, 1
"""Samples a step; a step of either phase costs about the same time."""

SHORT_WEIGHTS = {"self": 0.9, "docstrings": 0.1}
LONG_WEIGHTS = {"self": 0.8, "docstrings": 0.2}
"""Shares of the tokens: the library's code, and prose from its docstrings."""

MAX_EPOCHS = 20
"""Passes over the code after which a small model learns it by heart."""

PEAK_RATE = 4e-3
"""Highest learning rate; the last one is a tenth of it."""

TEMPERATURE = 0.7
"""How bold the text sample is: 0 takes the likeliest byte each time."""


@dataclass(frozen=True)
class Schedule:
    """What is fixed when a run starts for the first time.

    Attributes:
        boundary: Steps of the first phase.
        horizon: Step at which the learning rate has reached its end.
    """

    boundary: int
    horizon: int

    @classmethod
    def of(cls, steps: int) -> Schedule:
        """Return the schedule of a run that starts with `steps` steps in all."""
        return cls(boundary=max(1, steps * 7 // 10), horizon=steps)

    @property
    def warmup(self) -> int:
        """Steps in which the learning rate rises."""
        return max(1, self.horizon // 12)

    @property
    def log_every(self) -> int:
        """Steps between rows of the log."""
        return max(1, self.horizon // 20)

    @property
    def eval_every(self) -> int:
        """Steps between evaluations."""
        return max(25, self.horizon // 4)

    @property
    def checkpoint_every(self) -> int:
        """Steps between checkpoints."""
        return max(5, self.horizon // 10)
