"""Items that an executor loads; a worker process gets the dataset once, not per batch.

A worker process keeps the datasets it got. A call names the dataset by a key, and only
if the worker does not know the key is the call repeated with the pickled dataset. An
executor of threads finds the dataset itself, without pickling.
"""

from __future__ import annotations

import os
import pickle
import threading
import uuid
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .datasets._dataset import fetch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from .datasets import Dataset

_MAX_KEPT = 4
"""Datasets that a worker process keeps; the oldest is dropped first."""

_datasets: dict[str, tuple[int, Dataset[Any]]] = {}
"""Process id and dataset by key. A forked child must not use a dataset of its parent:
a lock in it may be held, and a database connection must not be shared."""


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
        items = self._executor.submit(_fetch, self._key, None, indices).result()
        if items is None:
            with self._lock:
                pickled = self._pickled
            items = self._executor.submit(_fetch, self._key, pickled, indices).result()
        return items

    @cached_property
    def _pickled(self) -> bytes:
        return pickle.dumps(self._dataset)


def _fetch(key: str, pickled: bytes | None, indices: Sequence[int]) -> Any:
    """Return the items at `indices`, or None if this process needs the dataset."""
    process_id, dataset = _datasets.get(key, (None, None))
    if dataset is None or process_id != os.getpid():
        if pickled is None:
            return None
        while len(_datasets) >= _MAX_KEPT:
            del _datasets[next(iter(_datasets))]
        dataset = pickle.loads(pickled)  # noqa: S301 - of the process that started us
        _datasets[key] = os.getpid(), dataset
    return fetch(dataset, indices)
