"""The items of the batches of an indexed dataset.

The item indices of a step depend only on the step, the seed and the sizes, so threads
and processes can load the steps in any order.

An executor may load the items. A worker process caches datasets by key, and each call
passes only the key. If the worker process lacks the dataset, the loader repeats the
call with the pickled dataset. An executor of threads never pickles the dataset.
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
"""Maximum number of datasets that a worker process caches; the oldest is dropped."""

_datasets: dict[str, tuple[int, Dataset[Any]]] = {}
"""Cached datasets by key, each with the id of the process that stored it. The id keeps
a forked child from using a dataset of its parent, which may hold a locked lock or a
database connection."""


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
        """Raise a ValueError if a batch does not divide over processes or devices."""
        last = self._steps_per_epoch - 1
        for step in () if last < 0 else sorted({0, last}):
            try:
                self._rows_of(self.num_rows(step))
            except ValueError as error:
                error.add_note(
                    f"the batch of step {step} has {self.num_rows(step)} rows; "
                    "drop_last=True drops a short last batch"
                )
                raise

    def num_rows(self, step: int) -> int:
        """Return the number of rows in a step's global batch."""
        first = step % self._steps_per_epoch * self._batch_size
        return min(self._batch_size, self._num_items - first)

    def load(self, step: int) -> Loaded:
        """Return the items of the rows that this process loads for a step."""
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
                f"the executor stopped before it loaded items {list(indices)} of step "
                f"{step}; iterate again from this step with a new executor (if its "
                "processes never began, put the main part of the program under `if "
                '__name__ == "__main__":`, because each process imports the program)'
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
    stored_by, dataset = _datasets.get(key, (None, None))
    if dataset is None or stored_by != os.getpid():  # not one that a fork inherited
        if pickled is None:
            return None
        while len(_datasets) >= _MAX_KEPT:
            del _datasets[next(iter(_datasets))]
        dataset = pickle.loads(pickled)  # noqa: S301 - the parent process pickled it
        _datasets[key] = os.getpid(), dataset
    return fetch(dataset, indices)
