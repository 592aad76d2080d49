"""The items of the batches of an indexed dataset.

Which items a step has depends only on the step, the seed and the sizes, so any thread
or process can load them, in any order.

An executor may load the items. Each call to a worker process passes the dataset's key.
A worker process caches datasets by key. If it lacks the key, this process calls again
with the pickled dataset. Threads of an executor share the dataset without pickling.
"""

from __future__ import annotations

import os
import pickle
import threading
import uuid
import weakref
from concurrent.futures import BrokenExecutor, CancelledError
from functools import cached_property
from typing import TYPE_CHECKING, Any

from roxxel_curriculum import make_key, permute

from roxxel_loader.datasets._dataset import fetch

from .collate import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from roxxel_loader.datasets import Dataset

    from .collate import Rows

_MAX_KEPT = 4
"""Datasets that a worker process caches; it drops the oldest first."""

_datasets: dict[str, tuple[int, Dataset[Any]]] = {}
"""Process id and dataset by key. A forked child must not use a dataset of its parent:
a lock in it may be held, and a database connection must not be shared."""


class IndexedItems:
    """Loads the items of any step of an indexed dataset."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        steps_per_epoch: int,
        shuffle: bool,
        seed: int,
        rows_of: Callable[[int], Rows],
        executor: Executor | None = None,
    ) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._num_items = len(dataset)
        self._steps_per_epoch = steps_per_epoch
        self._shuffle = shuffle
        self._seed = seed
        self._rows_of = rows_of
        self._remote = None if executor is None else RemoteDataset(dataset, executor)

    def check(self) -> None:
        """Raise a ValueError if a batch does not divide over the processes or devices.

        The error's note names the step.
        """
        last = self._steps_per_epoch - 1
        for step in () if last < 0 else sorted({0, last}):
            try:
                self._rows_of(self.num_rows(step))
            except ValueError as error:
                error.add_note(
                    f"the batch of step {step} has {self.num_rows(step)} rows; "
                    "drop_last=True leaves out a short one"
                )
                raise

    def num_rows(self, step: int) -> int:
        """Return the number of rows in a step's global batch."""
        first = step % self._steps_per_epoch * self._batch_size
        return min(self._batch_size, self._num_items - first)

    def load(self, step: int) -> Loaded:
        """Load and return this process's items of a step."""
        epoch, step_in_epoch = divmod(step, self._steps_per_epoch)
        rows = self._rows_of(self.num_rows(step))
        indices = rows.indices(step_in_epoch * self._batch_size)
        if self._shuffle:
            key = make_key("epoch", self._seed, epoch)
            indices = permute(indices, self._num_items, key).tolist()
        return Loaded(self._load_items(step, indices), indices, rows)

    def _load_items(self, step: int, indices: Sequence[int]) -> list[Any]:
        if self._remote is None:
            return fetch(self._dataset, indices)
        try:
            return self._remote.fetch(indices)
        except (BrokenExecutor, CancelledError) as error:
            raise RuntimeError(
                f"the executor stopped before items {list(indices)} of step {step} "
                "were loaded; start again from this step with a new executor"
            ) from error


class RemoteDataset:
    """A dataset whose items an executor loads."""

    def __init__(self, dataset: Dataset[Any], executor: Executor) -> None:
        self._dataset = dataset
        self._executor = executor
        self._key = uuid.uuid4().hex
        self._lock = threading.Lock()
        _datasets[self._key] = os.getpid(), dataset
        weakref.finalize(self, _datasets.pop, self._key, None)

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the items at `indices`."""
        items = self._executor.submit(_fetch_here, self._key, None, indices).result()
        if items is None:
            with self._lock:
                pickled = self._pickled
            call = self._executor.submit(_fetch_here, self._key, pickled, indices)
            items = call.result()
        return items

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self._dataset)


def _fetch_here(key: str, pickled: bytes | None, indices: Sequence[int]) -> Any:
    """Return the items at `indices`; None if this process lacks the dataset."""
    process_id, dataset = _datasets.get(key, (None, None))
    if dataset is None or process_id != os.getpid():
        if pickled is None:
            return None
        while len(_datasets) >= _MAX_KEPT:
            del _datasets[next(iter(_datasets))]
        dataset = pickle.loads(pickled)  # noqa: S301 - of the process that started us
        _datasets[key] = os.getpid(), dataset
    return fetch(dataset, indices)
