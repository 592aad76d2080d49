from __future__ import annotations

import gc
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_loader._prefetch import Prefetcher

from .helpers import join_threads, threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


def square(n: int) -> int:
    return n * n


def squares(
    num: int,
    function: Callable[[int], int] = square,
    *,
    ahead: int = 2,
    workers: int = 1,
    executor: Executor | None = None,
) -> Prefetcher[int]:
    return Prefetcher(function, 0, num, ahead=ahead, workers=workers, executor=executor)


@settings(max_examples=30)
@given(
    num=st.integers(0, 40),
    ahead=st.integers(0, 16),
    workers=st.sampled_from([0, 1, 2, 8]),
)
def test_results_come_in_order_whatever_works(
    num: int, ahead: int, workers: int
) -> None:
    with squares(num, ahead=ahead, workers=workers) as results:
        assert list(results) == [n * n for n in range(num)]


@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_no_more_is_made_ahead_than_was_said(workers: int, ahead: int) -> None:
    started: list[int] = []

    def note(n: int) -> int:
        started.append(n)
        return n

    with squares(50, note, ahead=ahead, workers=workers) as results:
        for n in results:
            assert max(started) <= n + ahead


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_comes_at_its_item_with_its_traceback(workers: int) -> None:
    def fail_at_seven(n: int) -> int:
        if n == 7:
            raise KeyError("seven")
        return n

    results = squares(20, fail_at_seven, ahead=4, workers=workers)

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
        next(squares(3, stop, workers=0))


def test_close_waits_for_running_jobs_and_leaves_no_thread() -> None:
    begun = threading.Event()
    go_on = threading.Event()
    ended: list[int] = []

    def slow(n: int) -> int:
        begun.set()
        go_on.wait(10)
        ended.append(n)
        return n

    results = squares(100, slow, ahead=3, workers=1)
    consumer = threading.Thread(target=lambda: next(results, None))
    consumer.start()
    begun.wait(10)
    threading.Timer(0, go_on.set).start()
    results.close()
    consumer.join(10)

    assert threads() == []
    assert ended[0] == 0
    assert len(ended) <= 4
    assert list(results) == []


def test_leaving_with_after_a_break_leaves_no_thread() -> None:
    with squares(1000, ahead=8, workers=4) as results:
        for n in results:
            if n > 100:
                break

    assert threads() == []


def test_an_abandoned_prefetcher_lets_its_threads_go() -> None:
    results = squares(1000, ahead=8, workers=4)
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

    results = squares(10, interrupted_once, ahead=0, workers=0)
    first = [next(results) for _ in range(5)]
    with pytest.raises(KeyboardInterrupt):
        next(results)

    assert first + list(results) == list(range(10))


def test_an_interrupt_while_waiting_loses_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with squares(5, ahead=2, workers=1) as results:
        first = [next(results), next(results)]
        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(results)
        assert first + list(results) == [n * n for n in range(5)]


def test_without_workers_nothing_is_made_before_it_is_requested() -> None:
    made: list[int] = []
    results = squares(9, lambda n: made.append(n) or n, ahead=4, workers=0)

    for n in results:
        assert made == [*range(n + 1)]
    assert threads() == []


def test_one_thread_makes_results_by_default() -> None:
    names: set[str] = set()
    results = Prefetcher(
        lambda _: names.add(threading.current_thread().name), 0, 9, ahead=2
    )

    list(results)

    assert len(names) == 1
    assert names.pop().startswith("roxxel-loader")
    assert threads() == []


def test_a_given_executor_works_and_stays_open() -> None:
    with ThreadPoolExecutor(2) as executor:
        with squares(30, executor=executor) as results:
            assert list(results) == [n * n for n in range(30)]
        assert executor.submit(int, "7").result() == 7


def test_an_executor_that_drops_work_is_an_error() -> None:
    go_on = threading.Event()
    executor = ThreadPoolExecutor(1)
    results = squares(30, lambda n: go_on.wait(10) or n, ahead=3, executor=executor)
    threading.Timer(0, go_on.set).start()
    next(results)
    executor.shutdown(cancel_futures=True)

    with pytest.raises(RuntimeError, match=r"dropped work|after shutdown"):
        list(results)


def test_a_thousand_abandoned_prefetchers_leave_nothing() -> None:
    gc.collect()
    for _ in range(20):
        next(squares(10, workers=1))
    join_threads()
    before = len(gc.get_objects())

    for _ in range(1000):
        next(squares(10, workers=1))

    join_threads()
    gc.collect()
    assert len(gc.get_objects()) - before < 500
