"""Batches of an indexed dataset.

The items of step k follow from k and a few numbers alone, so any thread or process
makes any step, in any order.
"""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, CancelledError
from typing import TYPE_CHECKING, Any

import numpy as np
from roxxel_curriculum import make_key, permute

from ._remote_dataset import RemoteDataset
from .datasets._dataset import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from ._finisher import Finisher
    from ._process_rows import Rows
    from .datasets import Dataset


class Batches:
    """Batches of an indexed dataset as a function of the step."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        steps_per_epoch: int,
        shuffle: bool,
        seed: int,
        finish: Finisher,
        rows_of: Callable[[int], Rows],
        executor: Executor | None = None,
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._num_items = len(dataset)
        self._steps_per_epoch = steps_per_epoch
        self._shuffle = shuffle
        self._seed = seed
        self._finish = finish
        self._rows_of = rows_of
        self._rows: dict[int, Rows] = {}
        self._remote = None if executor is None else RemoteDataset(dataset, executor)

    def check(self) -> None:
        """Raise a ValueError if a batch does not divide; its note names the step."""
        for step in sorted({0, self._steps_per_epoch - 1}):
            try:
                self.rows(self.num_rows(step))
            except ValueError as error:
                error.add_note(
                    f"the batch of step {step} has {self.num_rows(step)} rows; "
                    "drop_last=True leaves out a short one"
                )
                raise

    def num_rows(self, step: int) -> int:
        """Return the rows of a step's whole batch."""
        first = step % self._steps_per_epoch * self._batch_size
        return min(self._batch_size, self._num_items - first)

    def rows(self, num_rows: int) -> Rows:
        """Return which rows of a batch of `num_rows` this process loads."""
        rows = self._rows.get(num_rows)
        if rows is None:
            rows = self._rows[num_rows] = self._rows_of(num_rows)
        return rows

    def make(self, step: int) -> Any:
        """Return the batch of a step."""
        indices, rows = self._items(step)
        items = self._load(step, indices)
        return self._finish(step, items, indices, rows)

    def _load(self, step: int, indices: Sequence[int]) -> list[Any]:
        if self._remote is None:
            return fetch(self._dataset, indices)
        try:
            return self._remote.fetch(indices)
        except (BrokenExecutor, CancelledError) as error:
            raise RuntimeError(
                f"the executor stopped before items {list(indices)} of step {step} "
                "were loaded; start again from this step with a new executor"
            ) from error

    def _items(self, step: int) -> tuple[Sequence[int], Rows]:
        """Return the indices of the items of this process's rows, and the rows."""
        epoch, step_in_epoch = divmod(step, self._steps_per_epoch)
        rows = self.rows(self.num_rows(step))
        indices = rows.numbers(step_in_epoch * self._batch_size)
        if self._shuffle:
            key = make_key("epoch", self._seed, epoch)
            positions = np.fromiter(indices, np.int64, len(indices))
            indices = permute(positions, self._num_items, key).tolist()
        return indices, rows
