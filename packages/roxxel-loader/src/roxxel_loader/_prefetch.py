"""Ordered, bounded read-ahead: results are made before they are asked for.

Handing a result from thread to thread costs more than a result that takes less than
about a millisecond, so the default works ahead on the consumer's own thread, while
the device computes what was dispatched before, and moves to a thread only where results
are measured to be slow. Their order never depends on where they were made.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Generic, Literal, NoReturn, Self, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

Mode = Literal["inline", "thread"]

SLOW_S = 1e-3
"""Time of a result from which a thread is worth its handover."""

QUICK_S = 2.5e-4
"""Time below which all of the last results must be for the thread to be given up."""


class EndOfWorkError(Exception):
    """Raised by the function of a prefetcher where nothing is left to make."""


class Prefetcher(Generic[T]):
    """Iterator over `make(start)`, `make(start + 1)` and so on, made ahead, in order.

    An exception is raised at the result it belongs to, with the traceback of the thread
    it came from, and ends the iteration. So does an interrupt that meets it waiting for
    a thread; one that meets it at work itself loses nothing. `close()` (also by `with`)
    waits for what is being made; an abandoned prefetcher lets that finish and its
    threads go.

    Args:
        make: Makes the result of a number. Where it raises `EndOfWorkError`, the
            iteration ends.
        start: First number.
        stop: One past the last; None is never.
        ahead: Results kept beyond the one asked for; 0 works only when asked.
        workers: Threads that make results; 0 makes them all on the consumer's thread;
            None measures, and takes one thread where results are slow.
        executor: Makes the results instead of own threads; it is left open.
        submit: Has a result made by an executor; by default all of it by one call.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        start: int,
        stop: int | None,
        *,
        ahead: int,
        workers: int | None = None,
        executor: Executor | None = None,
        submit: Callable[[int, Executor], Future[T]] | None = None,
    ) -> None:
        self._make = make
        self._submit = submit
        self._next = start
        self._stop = stop
        self._ahead = ahead
        self._pending: deque[T | _Failed | Future[T]] = deque()
        self._lock = threading.RLock()
        self._closed = False
        self._interrupted = False
        self._auto = workers is None and executor is None and ahead > 0
        self._num_slow = -1  # the first result is not judged, for it warms up
        self._thread_s: deque[float] = deque(maxlen=16)
        self._resources = _Resources(executor, max(workers or 1, 1))
        self.mode: Mode = "thread" if workers or executor is not None else "inline"
        self._finalizer = weakref.finalize(
            self, _release, self._pending, self._resources
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self._interrupted:
                raise RuntimeError(
                    "an interrupt has met this iteration while it waited; start "
                    "another from the same step"
                )
            if self._closed:
                raise StopIteration
            pending = self._pending
            if self.mode == "inline":
                self._make_ahead()
            else:
                self._submit_ahead()
            if not pending:
                self.close()
                raise StopIteration
            head = pending[0]
            if isinstance(head, (Future, _Failed)):
                head = self._outcome(head)
            if pending:  # else closed by another thread while this one waited
                pending.popleft()
            return head

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was made ahead and wait for what is being made."""
        self._closed = True
        _release(self._pending, self._resources)
        with self._lock:  # a consumer in another thread may have added a last one
            _release(self._pending, self._resources, wait=True)
        self._finalizer.detach()

    def _make_ahead(self) -> None:
        """Make one result more than is taken, on this thread, until enough are there.

        Only the place moves on after each, so an interrupt loses nothing.
        """
        pending = self._pending
        if pending and isinstance(pending[-1], Future) and not pending[-1].done():
            return  # one thread at a time makes results
        # The very first is not kept waiting for a second.
        budget = 1 if self._num_slow < 0 else 2
        while budget and len(pending) <= self._ahead and self._next != self._stop:
            began = perf_counter()
            try:
                pending.append(self._make(self._next))
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                pending.append(_Failed(error))
                self._stop = self._next + 1
            self._next += 1
            budget -= 1
            if perf_counter() - began > SLOW_S:
                self._learn_slow()
            elif self._num_slow:
                self._num_slow -= 1 if self._num_slow > 0 else -1

    def _learn_slow(self) -> None:
        """Move to a thread when slow results outnumber quick ones by three."""
        self._num_slow += 1
        if self._num_slow == 3 and self._auto:
            self.mode = "thread"
            self._thread_s.clear()

    def _submit_ahead(self) -> None:
        while len(self._pending) <= self._ahead and self._next != self._stop:
            self._pending.append(self._submitted(self._next))
            self._next += 1
        times = self._thread_s
        if len(times) == times.maxlen and max(times.copy()) < QUICK_S:
            self.mode = "inline"
            self._num_slow = 0

    def _submitted(self, number: int) -> Future[T] | _Failed:
        executor = self._resources.executor()
        try:
            if self._auto:
                return executor.submit(_timed, self._make, number, self._thread_s)
            if self._submit is None:
                return executor.submit(self._make, number)
            return self._submit(number, executor)
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            self._stop = number + 1
            return _Failed(error)

    def _outcome(self, entry: _Failed | Future[T]) -> T:
        """Return a result, waiting for it; or raise, and make no more."""
        try:
            return entry.result()
        except (CancelledError, EndOfWorkError) as error:
            ended = self._closed or isinstance(error, EndOfWorkError)
            self.close()
            if ended:
                raise StopIteration from None
            raise RuntimeError(
                "the executor dropped work it had accepted; it must stay open while "
                "batches are made, so start from this step with a fresh one"
            ) from None
        except StopIteration as error:
            self.close()
            # Let through, it would end the consumer's loop as if all were done.
            raise RuntimeError("making a batch raised StopIteration") from error
        except Exception:
            self.close()
            raise
        except BaseException:
            # Ctrl-C: what has not begun must not keep the program from ending.
            self._interrupted = True
            _release(self._pending, self._resources)
            raise


class _Failed:
    """The exception of a result that was to be made on the consumer's thread."""

    __slots__ = ("_error",)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> NoReturn:
        """Raise the exception."""
        raise self._error


class _Resources:
    """The executor of one prefetcher: given, or its own threads, made when needed."""

    def __init__(self, given: Executor | None, workers: int) -> None:
        self._given = given
        self._own: ThreadPoolExecutor | None = None
        self._workers = workers

    def executor(self) -> Executor:
        """Return the executor, which may start threads from now on."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = ThreadPoolExecutor(
                self._workers, thread_name_prefix="roxxel-loader"
            )
        return self._own

    def release(self, *, wait: bool) -> None:
        """End the threads, if they are own ones."""
        if self._own is not None:
            self._own.shutdown(wait=wait, cancel_futures=True)


def _release(
    pending: deque[T | _Failed | Future[T]],
    resources: _Resources,
    *,
    wait: bool = False,
) -> None:
    """Stop the work; a finalizer must not wait, for it may run in a worker itself."""
    while pending:
        entry = pending.pop()
        if isinstance(entry, Future):
            cast("Future[T]", entry).cancel()
    resources.release(wait=wait)


def _timed(make: Callable[[int], T], number: int, seconds: deque[float]) -> T:
    began = perf_counter()
    value = make(number)
    seconds.append(perf_counter() - began)
    return value
