"""Iterations that are given up leave no thread and no memory."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from roxxel_loader import Dataloader, SimpleDataset, StreamingDataset, device_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.first

NUM_GIVEN_UP = 200
BATCH_BYTES = 16 * 256 * 4


def batch_of(step: int) -> np.ndarray:
    return np.full((16, 256), step, np.float32)


def items() -> Iterator[int]:
    yield from range(1000)


DATASET = SimpleDataset(range(1000))
STREAM = StreamingDataset(items)

GIVEN_UP: dict[str, Callable[[], object]] = {
    "device_stream": lambda: next(device_stream(batch_of, 0, 100)),
    "device_stream with a thread": lambda: next(
        device_stream(batch_of, 0, 100, workers=1)
    ),
    "Dataloader": lambda: next(iter(Dataloader(DATASET, 8))),
    "Dataloader with workers": lambda: next(iter(Dataloader(DATASET, 8, workers=2))),
    "Dataloader over a stream": lambda: next(iter(Dataloader(STREAM, 8, workers=1))),
}


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("roxxel-loader"):
            thread.join()


@pytest.mark.parametrize("name", GIVEN_UP)
def test_iterations_that_are_given_up_leave_nothing(name: str) -> None:
    give_up = GIVEN_UP[name]
    for _ in range(20):
        give_up()
    gc.collect()
    join_threads()
    tracemalloc.start()
    try:
        give_up()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(NUM_GIVEN_UP):
            give_up()
        gc.collect()
        join_threads()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    # Far less than one batch of each iteration.
    assert after - before < NUM_GIVEN_UP * BATCH_BYTES / 50
    loaders = [t for t in threading.enumerate() if t.name.startswith("roxxel-loader")]
    assert loaders == []
