"""Batches of a stream: workers read the items in turn and map them in parallel."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

from ._prefetch import EndOfWorkError
from .datasets._dataset import ITEM_NOTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ._finisher import Finisher
    from ._process_rows import Rows
    from .datasets import StreamingDataset


class PastEndError(ValueError):
    """Raised if a stream ends before the first step."""


class StreamBatches:
    """Batches of a stream; each step is made once, and steps start in order.

    One thread reads items at a time; the others wait for the steps before theirs.
    Executors start work in the order of submission, so no thread waits forever.
    """

    def __init__(
        self,
        dataset: StreamingDataset[Any],
        batch_size: int,
        *,
        start: int,
        epochs: int | None,
        drop_last: bool,
        finish: Finisher,
        rows_of: Callable[[int], Rows],
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._start = start
        self._epochs = epochs
        self._drop_last = drop_last
        self._finish = finish
        self._rows_of = rows_of
        self._turn = threading.Condition()
        self._next = start
        self._broken = False
        self._batches = self._read()

    def check(self) -> None:
        """Raise a ValueError if whole batches do not divide."""
        self.rows(self._batch_size)

    def rows(self, num_rows: int) -> Rows:
        """Return which rows of a batch of `num_rows` this process keeps."""
        return self._rows_of(num_rows)

    def make(self, step: int) -> Any:
        """Return the batch of a step."""
        first, raw = self._read_batch(step)
        indices, rows = self._own_rows(first, len(raw))
        items = [self._dataset.finish(raw[index - first], index) for index in indices]
        return self._finish(step, items, indices, rows)

    def _own_rows(self, first: int, num_rows: int) -> tuple[Sequence[int], Rows]:
        """Return the positions of the items that this process keeps, and its rows."""
        rows = self.rows(num_rows)
        return rows.numbers(first), rows

    def _read_batch(self, step: int) -> tuple[int, list[Any]]:
        """Wait for the steps before this one; return the first position and the items.

        Raises:
            EndOfWorkError: The stream has ended.
            PastEndError: The stream has ended before the first step.
            RuntimeError: An interrupt stopped an earlier read of the stream.
        """
        with self._turn:
            if self._broken:
                raise RuntimeError(
                    "the stream was interrupted while it was read; iterate again from "
                    f"step {step}"
                )
            self._turn.wait_for(lambda: self._next == step)
            self._broken = True  # stays True only after an interrupt
            try:
                found = next(self._batches, None)
                self._broken = False
            except Exception:
                self._broken = False
                raise
            finally:
                self._next += 1
                self._turn.notify_all()
        if found is None:
            raise EndOfWorkError
        return found

    def _read(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the first position and the items of each batch from the start on."""
        size = self._batch_size
        # Only a pass over an epoch gives its number of steps.
        step = self._start if self._epochs == 1 else 0
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            position = step * size if epoch == 0 else 0
            items = self._dataset.unfinished(position, epoch)
            first_step = step
            while True:
                try:
                    raw = list(islice(items, size))
                except Exception as error:
                    error.add_note(f"{ITEM_NOTE}the items of a stream from {position}")
                    raise
                if len(raw) < (size if self._drop_last else 1):
                    break
                if step >= self._start:
                    yield position, raw
                step += 1
                position += len(raw)
                if len(raw) < size:
                    break
            if position == 0 and step == first_step:
                raise ValueError(
                    f"the stream gave {len(raw)} items in epoch {epoch}, which make no "
                    f"batch of {size}; check where it reads from"
                )
            epoch += 1
        if step == self._start and self._epochs == 1 and not self._has_step(step - 1):
            step = self._steps_of_first_epoch()
        if step < self._start:
            raise PastEndError(
                f"start_step is {self._start} but the stream has {step} steps in "
                f"epochs={self._epochs}; raise epochs"
            )

    def _has_step(self, step: int) -> bool:
        """Return whether the first epoch has items for a step, reading only those."""
        if step < 0:
            return True
        items = self._dataset.unfinished(step * self._batch_size, 0)
        num_items = sum(1 for _ in islice(items, self._batch_size))
        return num_items >= (self._batch_size if self._drop_last else 1)

    def _steps_of_first_epoch(self) -> int:
        """Return the number of batches, by a pass over all items."""
        num_items = sum(1 for _ in self._dataset.unfinished(0, 0))
        whole, rest = divmod(num_items, self._batch_size)
        return whole + (1 if rest and not self._drop_last else 0)
