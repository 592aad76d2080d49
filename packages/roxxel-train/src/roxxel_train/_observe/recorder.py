"""Reads the scalars of updates, two updates late, and makes rows of them.

The loss of update k is read after update k + 2 was dispatched, on every process: the
device always has work, at most three updates are in flight, and all processes stop at
the same step when a loss is not finite. Rows, saves and evaluations read every loss
before them.
"""

from __future__ import annotations

import math
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from roxxel_train._log.terminal import train_texts
from roxxel_train._observe.timing import TIMING_FIELDS, Mark, Stopwatch
from roxxel_train.errors import BatchRow, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    import jax
    from roxxel_curriculum import Sampler
    from roxxel_loader import StreamStats

    from roxxel_train._log.logger import Logger
    from roxxel_train._machine import Machine
    from roxxel_train._observe.losses import LossMeans

ROW_FIELDS = TIMING_FIELDS | {
    "kind",
    "step",
    "phase",
    "loss_mean",
    "tokens",
    "tokens_by_source",
    "planned_tokens_by_source",
}
"""Fields that a training row may have besides the scalars of `loss_fn`."""

_UNREAD_UPDATES = 2
"""Updates whose loss is not read yet: enough to keep a device busy."""


class Recorder:
    """Turns the scalars of updates into rows, progress and errors.

    Args:
        logger: Writes the rows.
        sampler: Knows the contents of every batch.
        log_every: Updates between rows; the first and the last update have a row too.
        start: Updates done before this run.
        losses: Open means of the loss; every loss that is read is added.
        machine: Computes FLOP/s and memory; None leaves these fields out.

    Attributes:
        read_stats: Returns the times of the stream of batches; set by the trainer once
            there is a stream.
    """

    def __init__(
        self,
        logger: Logger,
        sampler: Sampler,
        log_every: int,
        start: int,
        losses: LossMeans,
        machine: Machine | None = None,
    ) -> None:
        self._logger = logger
        self._sampler = sampler
        self._log_every = log_every
        self._total_steps = sampler.total_steps
        self._losses = losses
        self._machine = machine
        self._watch = Stopwatch()
        self._start = self._step = start
        self._mark = Mark(start, self._tokens(start), 0.0)
        self._unread: deque[tuple[int, Mapping[str, jax.Array]]] = deque()
        self._last: Mapping[str, jax.Array] = {}
        self._shown: dict[str, str] = {}
        self._evaluated_step = -1
        self._evaluation: dict[str, float] = {}
        self.read_stats: Callable[[], StreamStats] | None = None

    @property
    def last_loss(self) -> float | None:
        """Loss of the last update that was read; None before the first."""
        return float(self._last["loss"]) if self._last else None

    @property
    def new_tokens(self) -> int:
        """Tokens delivered since the start."""
        return self._tokens(self._step) - self._tokens(self._start)

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited for batches."""
        return 0.0 if self.read_stats is None else self.read_stats().waited_s

    def excluded(self, name: str) -> AbstractContextManager[None]:
        """Count the time of a block under `name` and not as training."""
        return self._watch.excluded(name)

    def push(self, step: int, scalars: Mapping[str, jax.Array]) -> None:
        """Queue the scalars of update `step`, and read those of update `step` - 2.

        Raises:
            NonFiniteError: The loss that was read is NaN or infinite.
        """
        scalars["loss"].copy_to_host_async()
        self._unread.append((step, scalars))
        if len(self._unread) > _UNREAD_UPDATES:
            self._read_oldest()

    def drain(self) -> None:
        """Wait for every update and read its scalars.

        Raises:
            NonFiniteError: A loss is NaN or infinite.
        """
        while self._unread:
            self._read_oldest()

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the values of an evaluation after update `step`."""
        if values:
            self._log_row("eval", step, values)
        self._evaluated_step = step
        self._evaluation = {k: v for k, v in values.items() if isinstance(v, float)}

    def metrics(self) -> dict[str, float]:
        """Return the numbers that a checkpoint of the last update keeps.

        These are its scalars, `loss_mean` since the last checkpoint, and the values of
        the evaluation after this update if there was one.
        """
        metrics = {name: float(value) for name, value in self._last.items()}
        metrics["loss_mean"] = self._losses.checkpoint.mean
        if self._evaluated_step == self._step:
            metrics |= self._evaluation
        return metrics

    def not_finite(self, step: int, what: str) -> NonFiniteError:
        """Return the error for update `step`; log every row of its batch."""
        rows = tuple(self._rows_of_batch(step - 1))
        for row in rows:
            self._logger.info(f"step {step}: {what}: {row}", terminal=False)
        return NonFiniteError(step, what, rows)

    def _read_oldest(self) -> None:
        step, scalars = self._unread.popleft()
        loss = float(scalars["loss"])
        if not math.isfinite(loss):
            raise self.not_finite(step, f"the loss is {loss}")
        self._losses.add(loss)
        self._step, self._last = step, scalars
        row = None
        if step % self._log_every == 0 or step in (1, self._total_steps):
            row = self._train_row(step, scalars)
            self._shown = train_texts(row)
        # Before the row: a line on the terminal shows the number of steps too.
        shown = {**self._shown, "loss": f"{loss:.4f}"}
        self._logger.progress(step, self._total_steps, shown)
        if row is not None:
            self._log_row("train", step, row)

    def _train_row(self, step: int, scalars: Mapping[str, jax.Array]) -> dict[str, Any]:
        by_source = self._sampler.delivered_tokens(step)
        planned = self._sampler.planned_tokens(step)
        tokens = sum(by_source.values())
        stream = None if self.read_stats is None else self.read_stats()
        last, self._mark = self._mark, Mark(step, tokens, self._watch.now(), stream)
        rates = self._mark.rates_since(last)
        row = {
            "phase": self._sampler.phase(step - 1),
            **{name: float(value) for name, value in scalars.items()},
            "loss_mean": self._losses.row.close(),
            "tokens": tokens,
            "tokens_by_source": by_source,
            "planned_tokens_by_source": {n: round(x) for n, x in planned.items()},
            **rates,
            **self._watch.close_row(),
        }
        if self._machine is not None:
            row |= self._machine.fields(rates["tokens_per_s"])
        return row

    def _log_row(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._logger.metrics({"kind": kind, "step": step, "time": now, **values})

    def _tokens(self, step: int) -> int:
        return sum(self._sampler.delivered_tokens(step).values())

    def _rows_of_batch(self, step: int) -> Iterator[BatchRow]:
        for row in range(self._sampler.shape(step)[0]):
            location = self._sampler.locate(step, row)
            documents = tuple(int(document) for document in location.documents)
            yield BatchRow(
                row, location.source, location.start, location.stop, documents
            )
