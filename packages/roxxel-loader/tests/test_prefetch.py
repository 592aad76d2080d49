from __future__ import annotations

import threading
import traceback
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_loader import Dataloader, RangeDataset, StreamingDataset, device_stream

from .helpers import join_threads, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def square(n: int) -> int:
    return n * n


class Squares:
    """The results of a function of the step, made ahead; squares by default."""

    def __init__(
        self,
        num: int,
        function: Callable[[int], int] = square,
        *,
        ahead: int = 2,
        workers: int = 1,
    ) -> None:
        def batch_of(step: int) -> np.ndarray:
            return np.asarray(function(step))

        self._stream = device_stream(batch_of, 0, num, None, ahead, workers=workers)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        return int(next(self._stream))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()


@settings(max_examples=30)
@given(
    num=st.integers(0, 40),
    ahead=st.integers(0, 16),
    workers=st.sampled_from([0, 1, 2, 8]),
)
def test_results_come_in_order_whatever_works(
    num: int, ahead: int, workers: int
) -> None:
    with Squares(num, ahead=ahead, workers=workers) as results:
        assert list(results) == [n * n for n in range(num)]


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_no_more_is_made_ahead_than_was_said(workers: int, ahead: int) -> None:
    started: list[int] = []

    def note(n: int) -> int:
        started.append(n)
        return n

    with Squares(50, note, ahead=ahead, workers=workers) as results:
        for n in results:
            assert max(started) <= n + ahead


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_at_its_item_with_its_traceback(workers: int) -> None:
    def fail_at_seven(n: int) -> int:
        if n == 7:
            raise KeyError("seven")
        return n

    results = Squares(20, fail_at_seven, ahead=4, workers=workers)

    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(KeyError, match="seven") as caught:
        next(results)
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "fail_at_seven" in frames
    assert list(results) == []
    join_threads()


def test_stop_iteration_of_a_job_does_not_end_the_loop_in_silence() -> None:
    def stop(n: int) -> int:
        raise StopIteration(n)

    with pytest.raises(RuntimeError, match="StopIteration"):
        next(Squares(3, stop, workers=0))


def test_close_waits_for_running_jobs_and_leaves_no_thread() -> None:
    begun = threading.Event()
    go_on = threading.Event()
    ended: list[int] = []

    def slow(n: int) -> int:
        begun.set()
        go_on.wait(600)
        ended.append(n)
        return n

    results = Squares(100, slow, ahead=3, workers=1)
    consumer = threading.Thread(target=lambda: next(results, None))
    consumer.start()
    assert begun.wait(600)
    threading.Timer(0, go_on.set).start()
    results.close()
    consumer.join(600)

    assert threads() == []
    assert ended[0] == 0
    assert len(ended) <= 4
    assert list(results) == []


def test_a_batch_lives_no_longer_than_its_consumer_wants() -> None:
    def batch_of(step: int) -> np.ndarray:
        return np.full((8, 8), step)

    with device_stream(batch_of, 0, 100, None, 20) as stream:
        for _ in range(30):
            batch = next(stream)
            found = weakref.ref(batch)
            del batch
            assert found() is None


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_threads_that_share_an_iterator_lose_no_batch(workers: int) -> None:
    loader = Dataloader(RangeDataset(400), 1, prefetch=3, workers=workers)
    batches = iter(loader)
    taken: list[list[int]] = [[] for _ in range(4)]
    begin = threading.Barrier(4)

    def take(mine: list[int]) -> None:
        begin.wait(600)
        mine.extend(int(batch[0]) for batch in batches)

    consumers = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(600)

    assert sorted(n for mine in taken for n in mine) == [*range(400)]
    assert all(mine == sorted(mine) for mine in taken)
    assert batches.stats.steps == 400
    assert threads() == []


def test_leaving_with_after_a_break_leaves_no_thread() -> None:
    with Squares(1000, ahead=8, workers=4) as results:
        for n in results:
            if n > 100:
                break

    assert threads() == []


def test_an_abandoned_prefetcher_lets_its_threads_go() -> None:
    results = Squares(1000, ahead=8, workers=4)
    next(results)

    del results

    join_threads()


def test_an_interrupt_loses_no_item() -> None:
    interrupts = [5]

    def interrupted_once(n: int) -> int:
        if n in interrupts:
            interrupts.remove(n)
            raise KeyboardInterrupt
        return n

    results = Squares(10, interrupted_once, ahead=0, workers=0)
    first = [next(results) for _ in range(5)]
    with pytest.raises(KeyboardInterrupt):
        next(results)

    assert first + list(results) == list(range(10))


def test_an_interrupt_while_waiting_loses_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with Squares(5, ahead=2, workers=1) as results:
        first = [next(results), next(results)]
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(results)
        assert first + list(results) == [n * n for n in range(5)]


def test_without_workers_nothing_is_made_before_it_is_requested() -> None:
    made: list[int] = []
    results = Squares(9, lambda n: made.append(n) or n, ahead=4, workers=0)

    for n in results:
        assert made == [*range(n + 1)]
    assert threads() == []


def test_one_thread_makes_results_by_default() -> None:
    names: set[str] = set()

    def name_thread(n: int) -> int:
        names.add(threading.current_thread().name)
        return n

    assert list(Squares(9, name_thread)) == [*range(9)]

    assert len(names) == 1
    assert names.pop().startswith("roxxel-loader")
    assert threads() == []


def stream_of(num: int, gate: threading.Event) -> StreamingDataset[int]:
    def items() -> Iterator[int]:
        for n in range(num):
            gate.wait(600)
            yield n

    return StreamingDataset(items)


def test_a_given_executor_works_and_stays_open() -> None:
    gate = threading.Event()
    gate.set()
    with ThreadPoolExecutor(2) as executor:
        loader = Dataloader(stream_of(30, gate), 1, executor=executor)
        assert [int(batch[0]) for batch in loader] == list(range(30))
        assert executor.submit(int, "7").result() == 7


def test_an_executor_that_drops_work_is_an_error() -> None:
    gate = threading.Event()
    executor = ThreadPoolExecutor(1)
    batches = iter(Dataloader(stream_of(30, gate), 1, prefetch=3, executor=executor))
    threading.Timer(0, gate.set).start()
    next(batches)
    executor.shutdown(cancel_futures=True)

    with pytest.raises(RuntimeError, match=r"accepted batch|after shutdown"):
        list(batches)


def test_an_executor_of_threads_loads_the_items_of_a_dataset() -> None:
    with ThreadPoolExecutor(2) as executor:
        loader = Dataloader(RangeDataset(30), 4, executor=executor)
        assert np.concatenate(list(loader)).tolist() == list(range(30))
