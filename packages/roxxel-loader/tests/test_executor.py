"""An executor of processes gets the dataset once per worker, not with every batch."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from roxxel_loader import Dataloader, LazyDataset, SimpleDataset

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_ITEMS = 1 << 18


class CountedDataset(LazyDataset[Any]):
    """An array dataset that counts how often it is pickled."""

    def __init__(self) -> None:
        self.values = np.arange(NUM_ITEMS)
        self.num_pickles = 0

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, index: int, /) -> Any:
        return self.values[index]

    def __reduce__(self) -> Any:
        self.num_pickles += 1
        return SimpleDataset, (self.values,)


class CountingExecutor(ProcessPoolExecutor):
    """Counts the bytes of the calls that it sends to its processes."""

    num_bytes = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.num_bytes += len(pickle.dumps((fn, args, kwargs)))
        return super().submit(fn, *args, **kwargs)


class ForkedExecutor(Executor):
    """Stands for a process that was forked from this one: its memory, another id."""

    _calls = threading.Lock()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()
        with self._calls, mock.patch("os.getpid", return_value=-1):
            future.set_result(fn(*args, **kwargs))
        return future


@pytest.fixture(scope="module")
def executor() -> Iterator[CountingExecutor]:
    context = multiprocessing.get_context("forkserver")
    with CountingExecutor(2, mp_context=context) as executor:
        yield executor


def test_a_forked_process_does_not_use_the_dataset_of_its_parent() -> None:
    """The dataset may hold a lock that some thread of the parent has locked."""
    dataset = CountedDataset()

    batches = list(Dataloader(dataset, NUM_ITEMS >> 2, executor=ForkedExecutor()))

    assert dataset.num_pickles == 1
    assert np.array_equal(np.concatenate(batches), dataset.values)


def test_a_dataset_is_pickled_once_and_not_sent_with_every_batch(
    executor: CountingExecutor,
) -> None:
    dataset = CountedDataset()
    loader = Dataloader(dataset, NUM_ITEMS >> 8, executor=executor)
    for step, batch in enumerate(loader):
        start = step * (NUM_ITEMS >> 8)
        assert batch.tolist() == list(range(start, start + len(batch)))

    assert dataset.num_pickles == 1
    assert executor.num_bytes < 256 / 4 * dataset.values.nbytes


def test_loaders_may_share_an_executor(executor: CountingExecutor) -> None:
    loaders = [
        Dataloader(SimpleDataset(range(n, n + 6)), 2, executor=executor)
        for n in range(0, 60, 10)
    ]
    batches = [next(iterator) for iterator in map(iter, loaders)]

    assert [batch.tolist() for batch in batches] == [
        [n, n + 1] for n in range(0, 60, 10)
    ]
