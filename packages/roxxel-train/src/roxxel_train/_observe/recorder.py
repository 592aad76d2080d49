"""Read the scalars of updates two updates later, and write metrics rows.

Every process reads the loss of update k after it has dispatched update k + 2. So the
device always has work, at most three updates are in flight, and all processes stop at
the same step if a loss is not finite. Before a save or an evaluation, the loop reads
all earlier losses.
"""

from __future__ import annotations

import math
import operator
import time
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from roxxel_curriculum.run_log import fed_fields, head

from roxxel_train._step.loss import LOSS_WEIGHT, SKIPPED, perplexity, read_tally
from roxxel_train._step.spikes import MOST_IN_A_ROW
from roxxel_train._step.traced import missing_in_batch
from roxxel_train.errors import BatchRow, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    import jax
    from roxxel_curriculum import Sampler
    from roxxel_loader import StreamStats

    from roxxel_train._log.logger import Logger
    from roxxel_train._observe.ledger import Ledger, LossMeans
    from roxxel_train._observe.machine import Machine
    from roxxel_train._observe.stragglers import Stragglers
    from roxxel_train._step.traced import TokenLookup

_UNREAD_UPDATES = 2
"""Largest number of updates with an unread loss; two keep a device busy."""

_LEAST_SHOWN_S = 1e-3


@dataclass(eq=False, repr=False)
class Recorder:
    """Turns the scalars of updates into metrics rows, progress and errors.

    `start` is the number of updates done before this call of `Trainer.run`. The
    recorder adds every loss that it reads to `losses`, and every tally to `ledger`.
    `read_stats` returns the timings of the batch stream. When the scalars of an update
    are read and its metrics row is written, `after_read` is called with the number of
    the update. `stragglers` knows the slowest process. `spikes` says how many updates
    `skip_spikes` has left out before this call, and how many in a row right before it.
    """

    logger: Logger
    sampler: Sampler
    log_every: int
    start: int
    losses: LossMeans
    ledger: Ledger
    machine: Machine
    lookups: Iterable[TokenLookup]
    read_stats: Callable[[], StreamStats]
    after_read: Callable[[int], object]
    stragglers: Stragglers
    spikes: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        # A row never mixes phases, so the report knows what each phase has read.
        self._always = {1, *(phase.stop for phase in self.sampler.phases)}
        self._skipped, self._in_a_row = self.spikes
        self._step = self.start
        self._excluded: defaultdict[str, float] = defaultdict(float)
        self._collected_s = 0.0
        self._row_at = _Moment(self.start, time.perf_counter(), (0, 0, 0, 0))
        self._unread: deque[tuple[int, Mapping[str, jax.Array], jax.Array]] = deque()
        self._last: Mapping[str, jax.Array] = {}
        self._evaluated_step = -1
        self._evaluation: dict[str, float] = {}

    @property
    def last_loss(self) -> float | None:
        """Loss of the newest update whose scalars were read; None before the first."""
        return float(self._last["loss"]) if self._last else None

    @property
    def new_tokens(self) -> int:
        """Tokens delivered by this call of `Trainer.run`."""
        return self._tokens(self._step) - self._tokens(self.start)

    @property
    def waited_s(self) -> float:
        """Seconds that the loop has waited for batches."""
        return self.read_stats().waited_s

    @contextmanager
    def excluded(self, name: str) -> Generator[None]:
        """Count the time of a block under `name` and not as training time."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._excluded[name] += time.perf_counter() - start_s

    def collected(self, seconds: float) -> None:
        """Count a garbage collection.

        It counts as training time, because the device goes on working.
        """
        self._collected_s += seconds

    def push(
        self, step: int, scalars: Mapping[str, jax.Array], tally: jax.Array
    ) -> None:
        """Queue the results of update `step`, and read those of update `step - 2`.

        Raises:
            NonFiniteError: The loss that was read is NaN or infinite.
        """
        for name in scalars.keys() & {"loss", LOSS_WEIGHT, SKIPPED}:
            scalars[name].copy_to_host_async()
        tally.copy_to_host_async()
        self._unread.append((step, scalars, tally))
        if len(self._unread) > _UNREAD_UPDATES:
            self._read_oldest()

    def drain(self) -> None:
        """Wait for every update and read its scalars; errors as in `push`."""
        while self._unread:
            self._read_oldest()

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the metrics row of an evaluation after update `step`."""
        if values:
            self.logger.metrics({**head("eval", step), **values}, terminal=False)
        self._evaluated_step = step
        self._evaluation = {k: v for k, v in values.items() if isinstance(v, float)}

    def metrics(self) -> dict[str, float]:
        """Return the numbers that a checkpoint keeps for the last update.

        These are the scalars of the update (or, if `skip_spikes` left it out, of the
        last applied one); `loss_since_save`, the mean loss since the last scheduled
        checkpoint; and the values of an evaluation after this update. `loss_since_save`
        is missing if no token counted since then.
        """
        metrics = {name: float(value) for name, value in self._last.items()}
        mean = self.losses.checkpoint.mean
        if math.isfinite(mean):
            metrics["loss_since_save"] = mean
        if self._evaluated_step == self._step:
            metrics |= self._evaluation
        return metrics

    def not_finite(self, step: int, what: str) -> NonFiniteError:
        """Log every row of the batch of update `step`, and return the error."""
        rows = self._log_rows(step, what)
        cause = missing_in_batch(self.sampler, self.lookups, step - 1)
        return NonFiniteError(step, what, rows, cause)

    def _log_rows(self, step: int, what: str) -> tuple[BatchRow, ...]:
        rows = tuple(self._rows_of_batch(step - 1))
        for row in rows:
            self.logger.info(f"step {step}: {what}: {row}", terminal=False)
        return rows

    def _is_skipped(self, scalars: Mapping[str, jax.Array]) -> bool:
        """Return whether an update was left out; count consecutive ones."""
        before, self._skipped = self._skipped, int(scalars.get(SKIPPED, 0))
        is_skipped = self._skipped > before
        self._in_a_row = self._in_a_row + 1 if is_skipped else 0
        return is_skipped

    def _log_spike(self, step: int, scalars: Mapping[str, jax.Array]) -> None:
        """Log an update that was left out, with its rows and documents."""
        values = ", ".join(
            f"{name} {float(scalars[name]):.4g}"
            for name in ("loss", "grad_norm")
            if name in scalars
        )
        self.logger.warning(
            f"step {step}: a spike ({values}), so this update is skipped; "
            f"`roxxel show RUN --step {step - 1}` shows its batch"
        )
        if self._in_a_row == MOST_IN_A_ROW:
            self.logger.warning(
                f"step {step}: {MOST_IN_A_ROW} updates in a row were spikes, so this "
                "is a new level: the next update is applied, and the window begins "
                "anew; look at these batches, and branch from before them if they are "
                "wrong"
            )
        self._log_rows(step, "a spike, skipped")

    def _read_oldest(self) -> None:
        step, scalars, tally = self._unread.popleft()
        loss = float(scalars["loss"])
        if not math.isfinite(loss):
            raise self.not_finite(step, f"the loss is {loss}")
        is_skipped = self._is_skipped(scalars)
        if is_skipped:
            self._log_spike(step, scalars)
        weight = 0.0 if is_skipped else float(scalars.get(LOSS_WEIGHT, 1))
        self.losses.metrics_row.add(loss, weight)
        self.losses.checkpoint.add(loss, weight)
        of_update = read_tally(np.asarray(tally))
        self.ledger.add(step - 1, of_update, self.sampler.source_names)
        self._step = step
        if not is_skipped:  # a checkpoint holds the numbers of what it was trained on
            self._last = scalars
        self.logger.progress(step, self.sampler.total_steps, loss)
        if step % self.log_every == 0 or step in self._always:
            # The terminal needs `total_steps` from `progress` to show the metrics row.
            self.logger.metrics(head("train", step), self._train_row(step, scalars))
        self.after_read(step)

    def _train_row(
        self, step: int, scalars: Mapping[str, jax.Array]
    ) -> Callable[[], dict[str, Any]]:
        """End an interval between two rows; return a function for the row's values.

        Values that the next update changes are read here. The function may run later,
        on a thread of the log, because totals by source and copies from a device take
        time.
        """
        stream = self.read_stats()
        times = stream.waited_s, stream.read_s, stream.assemble_s, stream.transfer_s
        before = self._row_at
        now = self._row_at = _Moment(step, time.perf_counter(), times)
        excluded, self._excluded = self._excluded, defaultdict(float)
        collected_s, self._collected_s = self._collected_s, 0.0
        loss_mean = self.losses.metrics_row.close()
        ledger = self.ledger.close()
        step_s = now.training_s(before, excluded) / max(now.step - before.step, 1)
        lag = self.stragglers.lag(step, step_s)

        def values() -> dict[str, Any]:
            fed = fed_fields(self.sampler, step)
            new_tokens = fed["tokens"] - self._tokens(before.step)
            rates = _rates(before, now, excluded, new_tokens)
            timed = {**excluded, "gc_s": collected_s}
            mean = {
                "loss_mean": loss_mean,
                **perplexity("perplexity", loss_mean, scalars),
            }
            return {
                **{name: float(value) for name, value in scalars.items()},
                **(mean if math.isfinite(loss_mean) else {}),
                **fed,
                **ledger.fields(self.sampler.source_names),
                "step_s": step_s,
                **rates,
                **{name: s for name, s in timed.items() if s >= _LEAST_SHOWN_S},
                **self.machine.fields(rates["tokens_per_s"]),
                **lag,
            }

        return values

    def _tokens(self, step: int) -> int:
        return sum(self.sampler.delivered_tokens(step).values())

    def _rows_of_batch(self, step: int) -> Iterator[BatchRow]:
        for row in range(self.sampler.shape(step)[0]):
            location = self.sampler.locate(step, row)
            documents = tuple(int(document) for document in location.documents)
            yield BatchRow(
                row, location.source, location.start, location.stop, documents
            )


class _Moment(NamedTuple):
    """Updates done at a metrics row, the time, and the batch stream's timings."""

    step: int
    at_s: float
    times: tuple[float, float, float, float]

    def training_s(self, before: _Moment, excluded: Mapping[str, float]) -> float:
        """Return the seconds since `before`, without excluded blocks."""
        return max(self.at_s - before.at_s - sum(excluded.values()), 1e-9)


def _rates(
    before: _Moment, now: _Moment, excluded: Mapping[str, float], new_tokens: int
) -> dict[str, float]:
    """Return the timing fields of a metrics row, measured since the previous row.

    The background thread may work longer than the loop waits for it. So `read_s`,
    `assemble_s` and `transfer_s` are not the times of this work, but shares of the
    wait, in the same proportion.
    """
    seconds = now.training_s(before, excluded)
    waited, *work = map(operator.sub, now.times, before.times)
    share = waited / sum(work) if sum(work) else 0.0
    return {
        "tokens_per_s": new_tokens / seconds,
        "wait_s": waited,
        "wait_share": min(waited / seconds, 1.0),
        "read_s": share * work[0],
        "assemble_s": share * work[1],
        "transfer_s": share * work[2],
    }
