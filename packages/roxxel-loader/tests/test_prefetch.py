from __future__ import annotations

import gc
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roxxel_loader import _prefetch
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
    workers: int | None = None,
    executor: Executor | None = None,
) -> Prefetcher[int]:
    return Prefetcher(function, 0, num, ahead=ahead, workers=workers, executor=executor)


@settings(max_examples=30)
@given(
    num=st.integers(0, 40),
    ahead=st.integers(0, 16),
    workers=st.sampled_from([None, 0, 1, 2, 8]),
)
def test_results_come_in_order_whatever_works(
    num: int, ahead: int, workers: int | None
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


@pytest.mark.parametrize("workers", [None, 0, 1, 3])
def test_an_error_comes_at_its_item_with_its_traceback(workers: int | None) -> None:
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


def test_what_is_closed_while_it_hands_work_over_ends_without_an_error() -> None:
    def close_first(n: int, executor: Executor) -> Future[int]:
        results.close()
        return executor.submit(square, n)

    results = Prefetcher(square, 0, 9, ahead=2, workers=1, submit=close_first)

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


def test_an_interrupt_while_waiting_stops_the_threads_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    go_on = threading.Event()
    made: list[int] = []

    def wait(n: int) -> int:
        go_on.wait(10)
        made.append(n)
        return n

    results = squares(100, wait, ahead=50, workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(Future, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(results)
    go_on.set()
    join_threads()

    assert len(made) <= 1
    with pytest.raises(RuntimeError, match="start another"):
        next(results)


def test_a_given_executor_works_and_stays_open() -> None:
    with ThreadPoolExecutor(2) as executor:
        with squares(30, executor=executor) as results:
            assert list(results) == [n * n for n in range(30)]
            assert results.mode == "thread"
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


class Clock:
    """A clock that jobs move on by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_prefetch, "perf_counter", clock)
    return clock


def test_quick_jobs_stay_on_the_consumers_thread(clock: Clock) -> None:
    def quick(n: int) -> int:
        clock.now += 1e-4
        return n

    results = squares(100, quick)

    assert list(results) == list(range(100))
    assert results.mode == "inline"


@pytest.mark.parametrize("workers", [0, None])
def test_nobody_waits_for_a_slow_result_that_is_not_theirs(
    workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_prefetch, "SLOW_S", -1.0)
    made: list[int] = []

    with Prefetcher(made.append, 0, 3, ahead=8, workers=workers) as results:
        for number in range(2):
            next(results)
            assert made == [*range(number + 1)]


def test_a_slow_result_among_quick_ones_ends_the_run_and_moves_to_no_thread(
    clock: Clock,
) -> None:
    made: list[int] = []

    def some_slow(n: int) -> None:
        clock.now += 9e-3 if n % 4 == 3 else 1e-4
        made.append(n)

    with Prefetcher(some_slow, 0, 80, ahead=8) as results:
        for number in range(80):
            next(results)
            # All up to the next slow one.
            assert made == [*range(number + 4 - number % 4 if number else 1)]
        assert results.mode == "inline"


def test_slow_jobs_move_to_a_thread_and_quick_ones_back(
    clock: Clock,
) -> None:
    modes: list[str] = []

    def slow_then_quick(n: int) -> int:
        clock.now += 5e-3 if n < 20 else 1e-5
        return n

    results = squares(100, slow_then_quick)
    for n in results:
        modes.append(results.mode)
        assert n == len(modes) - 1

    assert modes[0] == "inline"
    assert modes[10] == "thread"
    assert modes[-1] == "inline"
    results.close()
    assert threads() == []


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
