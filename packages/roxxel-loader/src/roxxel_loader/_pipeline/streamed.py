"""The items of the batches of a stream.

One thread at a time reads the stream; several threads map items at the same time.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

from roxxel_loader.datasets._dataset import ITEM_NOTE

from .collate import Loaded
from .iterate import EndOfWorkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from roxxel_loader.datasets import StreamingDataset

    from .collate import Rows


class PastEndError(ValueError):
    """Raised if the stream ends before `start_step`."""


class StreamedItems:
    """Loads the items of each step once, in step order.

    A thread waits until all earlier steps are read. The wait always ends, because
    executors start calls in the order of submission.
    """

    def __init__(
        self,
        dataset: StreamingDataset[Any],
        batch_size: int,
        *,
        start: int,
        epochs: int | None,
        drop_last: bool,
        rows_of: Callable[[int], Rows],
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._start = start
        self._epochs = epochs
        self._drop_last = drop_last
        self._rows_of = rows_of
        self._turn = threading.Condition()
        self._next = start
        self._broken = False
        self._batches = self._read()

    def check(self) -> None:
        """Raise a ValueError if a whole batch does not divide over the processes."""
        self._rows_of(self._batch_size)

    def load(self, step: int) -> Loaded:
        """Return the mapped items of the rows that this process loads for a step."""
        first, raw = self._read_batch(step)
        rows = self._rows_of(len(raw))
        indices = rows.indices(first)
        items = [self._dataset.finish(raw[index - first], index) for index in indices]
        return Loaded(items, indices, rows)

    def _read_batch(self, step: int) -> tuple[int, list[Any]]:
        """Wait for earlier steps; return the position of the first item, and the items.

        Raises EndOfWorkError after the last batch, and PastEndError if the stream ends
        before `start_step`.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._broken or self._next >= step)
            if self._broken or self._next > step:
                raise RuntimeError(
                    "an interrupt stopped the reading of the stream; iterate again "
                    f"from step {step}"
                )
            self._broken = True  # stays True after an interrupt (BaseException)
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
        """Yield each batch from `start` on: its first item's position, and items."""
        size = self._batch_size
        # The number of steps of an epoch is unknown until the epoch is read. With
        # several epochs, reading must begin at step 0 to find the epoch of `start`.
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
            if position == 0 and step == first_step:  # The whole epoch gave no batch.
                self._check_no_batch(len(raw), step, epoch)
            epoch += 1
        # Reading began at `start`, and found nothing: the stream ends there, or before.
        is_unread = step == self._start and self._epochs == 1
        if step < self._start or (is_unread and not self._has_step(step - 1)):
            raise PastEndError(
                f"start_step is {self._start}, after the last step of the stream in "
                f"epochs={self._epochs}; raise epochs"
            )

    def _check_no_batch(self, num_items: int, step: int, epoch: int) -> None:
        """Raise a ValueError, except for an empty stream with finite `epochs`."""
        if num_items or step or self._epochs is None:
            raise ValueError(
                f"the stream gave {num_items} items in epoch {epoch}, too few for a "
                f"batch of {self._batch_size}; check what the stream reads"
            )

    def _has_step(self, step: int) -> bool:
        """Return whether the first epoch has `step`; read only the items of `step`."""
        if step < 0:
            return True
        items = self._dataset.unfinished(step * self._batch_size, 0)
        num_items = sum(1 for _ in islice(items, self._batch_size))
        return num_items >= (self._batch_size if self._drop_last else 1)
