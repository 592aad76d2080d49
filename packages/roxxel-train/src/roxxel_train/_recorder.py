"""From the scalars of updates to rows, a moving bar, and a stop when they go wrong."""

from __future__ import annotations

import math
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from roxxel_train._metrics import InFlight, Interval, Lap, Stopwatch, Waits
from roxxel_train._progress import train_texts
from roxxel_train.errors import BatchRow, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import jax
    from roxxel_curriculum import Sampler
    from roxxel_loader import StreamStats

    from roxxel_train._log import Logger
    from roxxel_train._machine import Machine
    from roxxel_train._metrics import Completion, Update

_IN_FLIGHT = 2
"""Updates dispatched and not finished: enough to keep a device busy."""


class Recorder:
    """Turns what updates report into what is logged.

    A step costs it some microseconds: tokens are counted, waits are looked up and
    scalars beside the loss are read only where a row is due.

    Args:
        logger: Where rows go.
        sampler: Names what was in a batch.
        log_every: Updates between rows; the first and the last have one too.
        start: Updates done before this run.
        interval: Sums of the row that was open at `start`.
        machine: Tells FLOP/s and memory; None leaves them out.

    Attributes:
        interval: Sums of the row that is open.
        stats: Asked what the loop has waited for; set once there is a stream.
    """

    def __init__(
        self,
        logger: Logger,
        sampler: Sampler,
        log_every: int,
        start: int,
        interval: Interval,
        machine: Machine | None = None,
    ) -> None:
        self._logger = logger
        self._sampler = sampler
        self._log_every = log_every
        self._total_steps = sampler.total_steps
        self._machine = machine
        self._watch = Stopwatch()
        self._in_flight = InFlight(_IN_FLIGHT, self._watch.now)
        self._start = start
        self._step = start
        self._lap = Lap(start, self._tokens(start), 0.0, Waits())
        self._shown: dict[str, str] = {}
        self._last: Update | None = None
        self._evaluated = -1
        self._evaluation: dict[str, float] = {}
        self._completion: Completion | None = None
        self.interval = interval
        self.stats: Callable[[], StreamStats] | None = None

    @property
    def last(self) -> dict[str, float]:
        """What the last finished update reported; empty before one is."""
        return {} if self._last is None else self._last.values()

    @property
    def new_tokens(self) -> int:
        """Tokens delivered since the start."""
        return self._tokens(self._step) - self._tokens(self._start)

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited for data."""
        return self._waits().waited_s

    def apart(self, name: str) -> AbstractContextManager[None]:
        """Count the time of a block under `name`, not as training."""
        return self._watch.apart(name)

    def push(self, step: int, scalars: dict[str, jax.Array]) -> None:
        """Take the scalars of update `step`; log those that are finished by now.

        Raises:
            NonFiniteError: A finished update had a NaN or infinite loss.
        """
        waits = self._waits() if self._is_due(step) else None
        self._log(self._in_flight.push(step, scalars, waits))

    def read(self) -> None:
        """Log every update that is finished by now.

        Raises:
            NonFiniteError: One of them had a NaN or infinite loss.
        """
        self._log(self._in_flight.read())

    def drain(self) -> None:
        """Wait for every update and log it.

        Raises:
            NonFiniteError: One of them had a NaN or infinite loss.
        """
        self._log(self._in_flight.drain(self._completion))

    @contextmanager
    def saving(self) -> Generator[None]:
        """Count a block as `save_s`, from when the updates before it are done.

        Until then the device is at work, and the block holds nothing up.
        """
        self._completion = self._in_flight.completion()
        try:
            with self._watch.apart("save_s", self._completion):
                yield
        finally:
            self._completion = None

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Log what an evaluation after update `step` found."""
        if values:
            self._row("eval", step, values)
        self._evaluated = step
        self._evaluation = {k: v for k, v in values.items() if isinstance(v, float)}

    def metrics(self, step: int) -> dict[str, float]:
        """Return the numbers of update `step`, those of its evaluation included."""
        return {**self.last, **(self._evaluation if self._evaluated == step else {})}

    def not_finite(self, step: int, what: str) -> NonFiniteError:
        """Return the error that says what of update `step` is not finite.

        Every row of its batch is in `system.log`; the error's text names a few.
        """
        rows = tuple(self._rows_of_batch(step - 1))
        for row in rows:
            self._logger.info(f"step {step}: {what}: {row}", terminal=False)
        return NonFiniteError(step, what, rows)

    def _is_due(self, step: int) -> bool:
        return step % self._log_every == 0 or step in (1, self._total_steps)

    def _waits(self) -> Waits:
        if self.stats is None:
            return Waits()
        stats = self.stats()
        return Waits(stats.waited_s, stats.read_s, stats.assemble_s, stats.transfer_s)

    def _tokens(self, step: int) -> int:
        return sum(self._sampler.delivered_tokens(step).values())

    def _log(self, finished: Iterable[tuple[Update, float]]) -> None:
        for update, loss in finished:
            if not math.isfinite(loss):
                raise self.not_finite(update.step, f"the loss is {loss}")
            self.interval.add(loss)
            self._step = update.step
            self._last = update
            row = None
            if update.waits is not None:
                row = self._train_row(update, update.waits)
                self._shown = train_texts(row)
            # Before the row: a line on the terminal names the total too.
            shown = {**self._shown, "loss": f"{loss:.4f}"}
            self._logger.progress(update.step, self._total_steps, shown)
            if row is not None:
                self._row("train", update.step, row)

    def _train_row(self, update: Update, waits: Waits) -> dict[str, Any]:
        step = update.step
        by_source = self._sampler.delivered_tokens(step)
        planned = self._sampler.planned_tokens(step)
        tokens = sum(by_source.values())
        last, self._lap = self._lap, Lap(step, tokens, update.at_s, waits)
        timing = self._lap.timing_since(last)
        values = {
            "phase": self._sampler.phase(step - 1),
            **update.values(),
            "loss_mean": self.interval.close(),
            "tokens": tokens,
            "tokens_by_source": by_source,
            "planned_tokens_by_source": {n: round(x) for n, x in planned.items()},
            **timing,
            **self._watch.take_apart(),
        }
        if self._machine is not None:
            values |= self._machine.fields(timing["tokens_per_s"])
        return values

    def _row(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._logger.metrics({"kind": kind, "step": step, "time": now, **values})

    def _rows_of_batch(self, step: int) -> Iterator[BatchRow]:
        for row in range(self._sampler.shape(step)[0]):
            place = self._sampler.locate(step, row)
            documents = tuple(int(document) for document in place.documents)
            yield BatchRow(row, place.source, place.start, place.stop, documents)
