"""What an update reports, fetched late.

The scalars of an update stay on the device until later updates have been dispatched,
so that reading them never holds the device up; that also bounds how many updates are
in flight. Sums over an interval are kept in Python floats, in the order of the
updates, and travel in the checkpoint: a resumed run writes the rows that an unbroken
one would have.
"""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    import jax

TIMING_FIELDS = frozenset(
    {
        "time",
        "step_s",
        "tokens_per_s",
        "wait_s",
        "wait_share",
        "compile_s",
        "eval_s",
        "save_s",
    }
)
"""Fields of a row that depend on the clock; all others are the same in every run."""


ROW_FIELDS = TIMING_FIELDS | {
    "kind",
    "step",
    "phase",
    "loss_mean",
    "tokens",
    "tokens_by_source",
}
"""Fields that every row of training has beside the loss."""


_WORTH_A_FIELD_S = 1e-3


@dataclass(frozen=True)
class Finished:
    """The values of an update that the device has finished.

    Attributes:
        step: Updates done with this one.
        values: Its scalars by name.
    """

    step: int
    values: dict[str, float]


class InFlight:
    """Scalars of updates whose values nobody has fetched yet, oldest first.

    Args:
        limit: Updates that may be dispatched and not finished.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[tuple[int, dict[str, jax.Array]]] = deque()

    def push(self, step: int, scalars: dict[str, jax.Array]) -> list[Finished]:
        """Take an update's scalars; return the updates that must be finished by now."""
        for value in scalars.values():
            value.copy_to_host_async()
        self._waiting.append((step, scalars))
        return self._fetch(self._limit)

    def drain(self) -> list[Finished]:
        """Wait for all updates and return their values."""
        return self._fetch(0)

    def _fetch(self, keep: int) -> list[Finished]:
        finished: list[Finished] = []
        while len(self._waiting) > keep:
            step, scalars = self._waiting.popleft()
            values = {name: float(value) for name, value in scalars.items()}
            finished.append(Finished(step, values))
        return finished


@dataclass
class Interval:
    """Sums since the last row, and the tokens of the whole run.

    Attributes:
        loss_sum: Sum of the losses since the last row.
        steps: Updates since the last row.
        tokens: Tokens delivered since the first step, by source.
    """

    loss_sum: float = 0.0
    steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)

    def add(self, loss: float, tokens: Mapping[str, int]) -> None:
        """Count one update."""
        self.loss_sum += loss
        self.steps += 1
        for name, count in tokens.items():
            self.tokens[name] = self.tokens.get(name, 0) + count

    def close(self) -> dict[str, Any]:
        """Return the fields of a row and begin the next interval."""
        row: dict[str, Any] = {
            "loss_mean": self.loss_sum / self.steps if self.steps else math.nan,
            "tokens": sum(self.tokens.values()),
            "tokens_by_source": dict(self.tokens),
        }
        self.loss_sum, self.steps = 0.0, 0
        return row

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that the next row comes out alike."""
        return {
            "loss_sum": self.loss_sum,
            "steps": self.steps,
            "tokens": dict(self.tokens),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Interval:
        """Return the interval that `state()` described."""
        return cls(state["loss_sum"], state["steps"], dict(state["tokens"]))


class Stopwatch:
    """Time spent training since the last row, with all else counted apart.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._apart: dict[str, float] = {}

    @contextmanager
    def apart(self, name: str) -> Generator[None]:
        """Count the time of the block under `name` and not as training."""
        begin = self._clock()
        try:
            yield
        finally:
            self._apart[name] = self._apart.get(name, 0.0) + self._clock() - begin

    def lap(self, steps: int, tokens: int, waited_s: float) -> dict[str, float]:
        """Return the timing fields of a row and begin the next lap.

        Args:
            steps: Updates since the last lap.
            tokens: Tokens of those updates.
            waited_s: Seconds that the loop waited for data since the last lap.
        """
        now = self._clock()
        training = max(now - self._since - sum(self._apart.values()), 1e-9)
        row = {
            "step_s": training / max(steps, 1),
            "tokens_per_s": tokens / training,
            "wait_s": waited_s,
            "wait_share": min(waited_s / training, 1.0),
            **{name: s for name, s in self._apart.items() if s >= _WORTH_A_FIELD_S},
        }
        self._since, self._apart = now, {}
        return row
