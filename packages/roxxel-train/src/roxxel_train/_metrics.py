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
        at_s: When it was seen to be finished, on the clock of the training.
        waited_s: Seconds that the loop had waited for data when it was dispatched.
    """

    step: int
    values: dict[str, float]
    at_s: float
    waited_s: float


@dataclass
class _Update:
    step: int
    scalars: dict[str, Any]  # jax.Array, whose is_ready() its type does not know
    waited_s: float
    at_s: float | None = None


class InFlight:
    """Scalars of updates whose values nobody has fetched yet, oldest first.

    Args:
        limit: Updates that may be dispatched and not finished.
        clock: Seconds of training.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._waiting: deque[_Update] = deque()
        self._last_seen_s = clock()

    def push(
        self, step: int, scalars: dict[str, jax.Array], waited_s: float = 0.0
    ) -> list[Finished]:
        """Take an update's scalars; return the updates that must be finished by now.

        Args:
            step: Updates done with this one.
            scalars: What it reports.
            waited_s: Seconds that the loop has waited for data until now.
        """
        for value in scalars.values():
            value.copy_to_host_async()
        self._waiting.append(_Update(step, scalars, waited_s))
        self._look()
        return self._fetch(self._limit)

    def drain(self) -> list[Finished]:
        """Wait for all updates and return their values."""
        return self._fetch(0)

    def _look(self) -> None:
        """Note which updates are finished; those seen at once share the time evenly."""
        seen = [
            update
            for update in self._waiting
            if update.at_s is None and update.scalars["loss"].is_ready()
        ]
        now = self._clock()
        for index, update in enumerate(seen, 1):
            share = index / len(seen)
            update.at_s = self._last_seen_s + share * (now - self._last_seen_s)
        if seen:
            self._last_seen_s = now

    def _fetch(self, keep: int) -> list[Finished]:
        finished: list[Finished] = []
        while len(self._waiting) > keep:
            oldest = self._waiting[0]
            values = {name: float(value) for name, value in oldest.scalars.items()}
            self._look()
            self._waiting.popleft()
            at_s = self._last_seen_s if oldest.at_s is None else oldest.at_s
            finished.append(Finished(oldest.step, values, at_s, oldest.waited_s))
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
    """A clock that stands still while something else than training is done.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = clock()
        self._apart_s = 0.0
        self._since_row: dict[str, float] = {}

    def now(self) -> float:
        """Return the seconds of training so far."""
        return self._clock() - self._begin - self._apart_s

    @contextmanager
    def apart(self, name: str) -> Generator[None]:
        """Count the time of the block under `name` and not as training."""
        begin = self._clock()
        try:
            yield
        finally:
            took = self._clock() - begin
            self._apart_s += took
            self._since_row[name] = self._since_row.get(name, 0.0) + took

    def take_apart(self) -> dict[str, float]:
        """Return the time counted apart since the last call, by name."""
        taken, self._since_row = self._since_row, {}
        return {name: s for name, s in taken.items() if s >= _WORTH_A_FIELD_S}


@dataclass(frozen=True)
class Lap:
    """Where training stood at a row.

    Attributes:
        step: Updates done.
        tokens: Tokens delivered since the first step.
        at_s: Seconds of training.
        waited_s: Seconds of them in which the loop waited for data.
    """

    step: int
    tokens: int
    at_s: float
    waited_s: float

    def timing_since(self, last: Lap) -> dict[str, float]:
        """Return the rates of a row from the lap before."""
        seconds = max(self.at_s - last.at_s, 1e-9)
        waited = self.waited_s - last.waited_s
        return {
            "step_s": seconds / max(self.step - last.step, 1),
            "tokens_per_s": (self.tokens - last.tokens) / seconds,
            "wait_s": waited,
            "wait_share": min(waited / seconds, 1.0),
        }
