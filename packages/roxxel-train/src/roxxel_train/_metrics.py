"""What an update reports, fetched late.

The scalars of an update stay on the device until later updates have been dispatched,
so that reading them never holds the device up; that also bounds how many updates are
in flight. The sum of an interval's losses is kept in a Python float, in the order of
the updates, and travels in the checkpoint: a resumed run writes the rows that an
unbroken one would have.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

TIMING_FIELDS = frozenset(
    {
        "time",
        "step_s",
        "tokens_per_s",
        "model_flops_per_s",
        "mfu",
        "wait_s",
        "wait_share",
        "read_s",
        "assemble_s",
        "transfer_s",
        "compile_s",
        "eval_s",
        "save_s",
        "device_bytes",
        "device_peak_bytes",
    }
)
"""Fields of a row that depend on the clock and the machine; all others are the same in
every run."""


ROW_FIELDS = TIMING_FIELDS | {
    "kind",
    "step",
    "phase",
    "loss_mean",
    "tokens",
    "tokens_by_source",
    "planned_tokens_by_source",
}
"""Fields that a row of training may have beside what `loss_fn` reports."""


_WORTH_A_FIELD_S = 1e-3

_READ_EVERY_S = 0.25


class Waits(NamedTuple):
    """What the stream of batches had cost by some moment, in seconds.

    Attributes:
        waited_s: How long the loop had waited for batches.
        read_s: How long the source was read for them, in whatever thread.
        assemble_s: How long parts were put together, likewise.
        transfer_s: How long arrays were made on the devices, likewise.
    """

    waited_s: float = 0.0
    read_s: float = 0.0
    assemble_s: float = 0.0
    transfer_s: float = 0.0


@dataclass(slots=True)
class Update:
    """An update that was dispatched.

    Attributes:
        step: Updates done with this one.
        scalars: What it reports, on the device.
        waits: How long the loop had waited when it was dispatched; None where no row is
            made of it.
        at_s: When it was seen to be finished, on the clock of the training; NaN until
            then.
    """

    step: int
    scalars: Mapping[str, Any]  # jax.Array, whose is_ready() its type does not know
    waits: Waits | None = None
    at_s: float = math.nan

    def values(self) -> dict[str, float]:
        """Return what it reports; waits until it is finished."""
        return {name: float(value) for name, value in self.scalars.items()}


class InFlight:
    """Updates whose losses nobody has read yet, oldest first.

    To read a loss costs more than to see that it is there, so losses are read some at a
    time: where a row is due, and else every quarter of a second.

    Args:
        limit: Updates that may be dispatched and not finished.
        clock: Seconds of training.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        self._running: deque[Update] = deque()
        self._unread: list[Update] = []
        self._is_row_due = False
        self._last_seen_s = self._last_read_s = clock()

    def push(
        self, step: int, scalars: Mapping[str, jax.Array], waits: Waits | None = None
    ) -> list[tuple[Update, float]]:
        """Take an update's scalars; wait until no more than the limit are running.

        Args:
            step: Updates done with this one.
            scalars: What it reports, a loss at least.
            waits: How long the loop has waited until now, if a row will be made of it;
                then its scalars are on their way to the host.

        Returns:
            Finished updates with their losses, if it is time to read some.
        """
        if waits is not None:
            for value in scalars.values():
                value.copy_to_host_async()
        self._running.append(Update(step, scalars, waits))
        self._look()
        while len(self._running) > self._limit:
            self._wait()
        if self._is_row_due or self._last_seen_s - self._last_read_s >= _READ_EVERY_S:
            return self._read()
        return []

    def drain(self, completion: Completion | None = None) -> list[tuple[Update, float]]:
        """Wait for all updates and return them, with their losses.

        Args:
            completion: Has seen when they were finished, which may be a while ago.
        """
        if completion is not None and self._running:
            self._look(len(self._running), completion.at_s())
        while self._running:
            self._wait()
        return self._read()

    def read(self) -> list[tuple[Update, float]]:
        """Return the updates that are finished by now, with their losses."""
        self._look()
        return self._read()

    def completion(self) -> Completion:
        """Return the moment at which all that is running now will be finished."""
        newest = [update.scalars["loss"] for update in self._running][-1:]
        return Completion(newest, self._clock)

    def _wait(self) -> None:
        self._running[0].scalars["loss"].block_until_ready()
        self._look(finished=1)

    def _look(self, finished: int = 0, now: float | None = None) -> None:
        """Note which updates are finished; those seen at once share the time evenly.

        Args:
            finished: How many are known to be.
            now: When they were seen to be, on the clock of the training, in seconds.
        """
        running = self._running
        while finished < len(running) and running[finished].scalars["loss"].is_ready():
            finished += 1
        if not finished:
            return
        now = self._clock() if now is None else now
        each_s = (now - self._last_seen_s) / finished
        for index in range(1, finished + 1):
            update = running.popleft()
            update.at_s = self._last_seen_s + index * each_s
            self._unread.append(update)
            self._is_row_due |= update.waits is not None
        self._last_seen_s = now

    def _read(self) -> list[tuple[Update, float]]:
        unread, self._unread = self._unread, []
        self._is_row_due = False
        self._last_read_s = self._last_seen_s
        losses = [update.scalars["loss"] for update in unread]
        for loss in losses:
            loss.copy_to_host_async()
        return [
            (update, float(loss)) for update, loss in zip(unread, losses, strict=True)
        ]


class Completion:
    """The moment at which some arrays are there, seen by a thread of its own.

    Args:
        arrays: On the device, or still to be computed.
        clock: Seconds of training.
    """

    def __init__(self, arrays: Sequence[jax.Array], clock: Callable[[], float]) -> None:
        self._arrays = arrays
        self._clock = clock
        self._at_s = clock()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        if arrays:
            self._thread.start()

    def at_s(self) -> float:
        """Return the moment, in seconds of training; waits for it."""
        if self._arrays:
            self._thread.join()
        return self._at_s

    def _wait(self) -> None:
        # What has gone wrong is raised where they are read.
        with suppress(Exception):
            jax.block_until_ready(self._arrays)
        self._at_s = self._clock()


@dataclass(slots=True)
class Interval:
    """The losses since the last row.

    Attributes:
        loss_sum: Their sum.
        steps: Their number.
    """

    loss_sum: float = 0.0
    steps: int = 0

    def add(self, loss: float) -> None:
        """Count one update."""
        self.loss_sum += loss
        self.steps += 1

    def close(self) -> float:
        """Return the mean, NaN without an update, and begin the next interval."""
        mean = self.loss_sum / self.steps if self.steps else math.nan
        self.loss_sum, self.steps = 0.0, 0
        return mean

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold so that the next row comes out alike."""
        return {"loss_sum": self.loss_sum, "steps": self.steps}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Interval:
        """Return the interval that `state()` described."""
        return cls(state["loss_sum"], state["steps"])


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
    def apart(self, name: str, since: Completion | None = None) -> Generator[None]:
        """Count the time of the block under `name` and not as training.

        Args:
            name: What it is counted as.
            since: When to begin; by default now.
        """
        begin = self.now()
        try:
            yield
        finally:
            begin = begin if since is None else since.at_s()
            took = self.now() - begin
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
        waits: Seconds of them in which the loop waited for data.
    """

    step: int
    tokens: int
    at_s: float
    waits: Waits

    def timing_since(self, last: Lap) -> dict[str, float]:
        """Return the rates of a row from the lap before.

        The wait is shared out as making the batches was: in another thread that takes
        longer than the loop waits.
        """
        seconds = max(self.at_s - last.at_s, 1e-9)
        waited, read, assembled, transferred = (
            now - before for now, before in zip(self.waits, last.waits, strict=True)
        )
        made = read + assembled + transferred
        share = waited / made if made else 0.0
        return {
            "step_s": seconds / max(self.step - last.step, 1),
            "tokens_per_s": (self.tokens - last.tokens) / seconds,
            "wait_s": waited,
            "wait_share": min(waited / seconds, 1.0),
            "read_s": share * read,
            "assemble_s": share * assembled,
            "transfer_s": share * transferred,
        }
