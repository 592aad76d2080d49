"""From the scalars of updates to rows, a moving bar, and a stop when they go wrong."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from roxxel_train._metrics import Finished, InFlight, Interval, Lap, Stopwatch
from roxxel_train._progress import train_texts
from roxxel_train.errors import BatchRow, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import jax
    from roxxel_curriculum import Sampler

    from roxxel_train._log import Logger

_IN_FLIGHT = 2
"""Updates dispatched and not finished: enough to keep a device busy."""


class Recorder:
    """Turns what updates report into what is logged.

    Args:
        logger: Where rows go.
        sampler: Names what was in a batch.
        log_every: Updates between rows; the first and the last have one too.
        start: Updates done before this run.
        interval: Sums of the row that was open at `start`.
    """

    def __init__(
        self,
        logger: Logger,
        sampler: Sampler,
        log_every: int,
        start: int,
        interval: Interval,
    ) -> None:
        self._logger = logger
        self._sampler = sampler
        self._log_every = log_every
        self._watch = Stopwatch()
        self._in_flight = InFlight(_IN_FLIGHT, self._watch.now)
        self._first_tokens = sum(interval.tokens.values())
        self._lap = Lap(start, self._first_tokens, 0.0, 0.0)
        self._shown: dict[str, str] = {}
        self.interval = interval
        self.waited_s: Callable[[], float] = lambda: 0.0
        self.last: dict[str, float] = {}
        self._evaluated = -1
        self._evaluation: dict[str, float] = {}

    @property
    def new_tokens(self) -> int:
        """Tokens delivered since the start."""
        return sum(self.interval.tokens.values()) - self._first_tokens

    def apart(self, name: str) -> AbstractContextManager[None]:
        """Count the time of a block under `name`, not as training."""
        return self._watch.apart(name)

    def push(self, step: int, scalars: dict[str, jax.Array]) -> None:
        """Take the scalars of update `step`; log those that are finished by now.

        Raises:
            NonFiniteError: A finished update had a NaN or infinite loss.
        """
        self._log(self._in_flight.push(step, scalars, self.waited_s()))

    def drain(self) -> None:
        """Wait for every update and log it.

        Raises:
            NonFiniteError: One of them had a NaN or infinite loss.
        """
        self._log(self._in_flight.drain())

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
        """Return the error that says what of update `step` is not finite."""
        return NonFiniteError(step, what, tuple(self._rows_of_batch(step - 1)))

    def _log(self, finished: list[Finished]) -> None:
        total_steps = self._sampler.total_steps
        for update in finished:
            step, loss = update.step, update.values["loss"]
            if not math.isfinite(loss):
                raise self.not_finite(step, f"the loss is {loss}")
            self.interval.add(loss, self._tokens_of_batch(step - 1))
            self.last = update.values
            if step in (1, total_steps) or step % self._log_every == 0:
                phase = self._sampler.phase(step - 1)
                sums = self.interval.close()
                timing = self._timing(update, sums["tokens"])
                values = {"phase": phase, **update.values, **sums, **timing}
                self._shown = train_texts(values)
                self._row("train", step, values)
            shown = {**self._shown, "loss": f"{loss:.4f}"}
            self._logger.progress(step, total_steps, shown)

    def _row(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._logger.metrics({"kind": kind, "step": step, "time": now, **values})

    def _timing(self, update: Finished, tokens: int) -> dict[str, float]:
        last = self._lap
        self._lap = Lap(update.step, tokens, update.at_s, update.waited_s)
        return {**self._lap.timing_since(last), **self._watch.take_apart()}

    def _tokens_of_batch(self, step: int) -> dict[str, int]:
        """Return the tokens that each source gave to the batch of `step`."""
        windows = self._sampler.windows(step)
        seq_len = self._sampler.shape(step)[1]
        names = self._sampler.source_names
        counts = np.bincount(windows.source, minlength=len(names))
        return {
            name: int(count) * seq_len
            for name, count in zip(names, counts, strict=True)
        }

    def _rows_of_batch(self, step: int) -> Iterator[BatchRow]:
        for row in range(self._sampler.shape(step)[0]):
            place = self._sampler.locate(step, row)
            documents = tuple(int(document) for document in place.documents)
            yield BatchRow(row, place.source, place.start, place.stop, documents)
