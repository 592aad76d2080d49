"""Results of consecutive steps: made ahead in a bounded queue, delivered in order."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from ._thread_settings import settings_here

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class EndOfWorkError(Exception):
    """Raised by the function of a prefetcher when no step is left."""


class Prefetcher(Generic[T]):
    """Iterator over `make(start)`, `make(start + 1)` and so on, in order.

    An exception is raised at the step it belongs to and ends the iteration. An
    interrupt while `make` runs or while the consumer waits loses no step: the next
    `next()` returns the same step. An abandoned prefetcher releases its threads.

    Args:
        make: Makes the result of a step. `EndOfWorkError` ends the iteration.
        start: First step.
        stop: One past the last step; None never stops.
        ahead: Results made beyond the requested one.
        workers: Threads that make results. 0 makes each result on the consumer's
            thread when it is requested, and nothing ahead.
        executor: Makes the results instead of own threads; it is left open.

    Attributes:
        waited_s: Seconds the consumer spent making results or waiting for them.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        start: int,
        stop: int | None,
        *,
        ahead: int,
        workers: int = 1,
        executor: Executor | None = None,
    ) -> None:
        self._make = make
        self._next = start
        self._stop = stop
        self._ahead = ahead
        self._workers = workers
        self._executor = executor
        self._threads: ThreadPoolExecutor | None = None
        self._pending: deque[Future[T]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._finalizer: weakref.finalize[..., Self] | None = None
        self.waited_s = 0.0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        began = perf_counter()
        try:
            return self._result()
        except Exception as error:
            was_closed = self._closed
            self.close()
            if isinstance(error, StopIteration | EndOfWorkError) or was_closed:
                raise StopIteration from None
            raise
        finally:
            self.waited_s += perf_counter() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the results made ahead and wait for those in progress."""
        with self._lock:
            self._closed = True
            _release(self._pending, None)
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        if self._finalizer is not None:
            self._finalizer.detach()

    def _result(self) -> T:
        if self._workers == 0 and self._executor is None:
            if self._closed or self._next == self._stop:
                raise StopIteration
            result = _guarded(self._make, self._next)
            self._next += 1
            return result
        with self._lock:
            self._submit_ahead()
            if not self._pending:
                raise StopIteration
            first = self._pending[0]
        try:
            result = first.result()
        except CancelledError:
            raise RuntimeError(
                "the executor dropped work it had accepted; keep the executor open "
                "while batches are made, and start again from this step with a new one"
            ) from None
        with self._lock:
            if self._pending:  # empty if another thread has closed this prefetcher
                self._pending.popleft()
        return result

    def _submit_ahead(self) -> None:
        while (
            not self._closed
            and len(self._pending) <= self._ahead
            and self._next != self._stop
        ):
            executor = self._executor or self._own_threads()
            self._pending.append(executor.submit(_guarded, self._make, self._next))
            self._next += 1

    def _own_threads(self) -> ThreadPoolExecutor:
        """Return the threads; they start with the settings of the first consumer."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._workers,
                thread_name_prefix="roxxel-loader",
                initializer=settings_here(),
            )
            self._finalizer = weakref.finalize(
                self, _release, self._pending, self._threads
            )
        return self._threads


def _guarded(make: Callable[[int], T], step: int) -> T:
    """Return `make(step)`; a StopIteration would end the consumer's loop silently."""
    try:
        return make(step)
    except StopIteration as error:
        raise RuntimeError(
            f"making the batch of step {step} raised StopIteration"
        ) from (error)


def _release(pending: deque[Future[Any]], threads: ThreadPoolExecutor | None) -> None:
    """Cancel pending work without waiting: a finalizer may run in a worker thread."""
    while pending:
        pending.pop().cancel()
    if threads is not None:
        threads.shutdown(wait=False, cancel_futures=True)
