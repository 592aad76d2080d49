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
from functools import partial
from time import perf_counter
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    cast,
)

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MakeSome: TypeAlias = "Callable[[int, int, Callable[[T], None]], bool]"
"""Makes results from a number on, at most so many and not past one that was slow; calls
the third argument with each, in order, with those before an error too; returns whether
the last was slow."""

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
    a thread; one that meets `make` on the consumer's thread loses nothing, for what was
    not finished is made again, but one between two results may lose or repeat one.
    `close()` (also by `with`) waits for what is being made; an abandoned prefetcher
    lets that finish and its threads go.

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
        make_some: Makes results on the consumer's thread instead of `make`, where
            several cost less together.
        settings: Called on the consumer's thread before own threads begin; gives what
            each of them calls first.

    Attributes:
        mode: Where results are made now: `"inline"`, on the consumer's thread, or
            `"thread"`, on others.
        waited_s: Seconds the consumer has spent making results or waiting for them.
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
        make_some: MakeSome[T] | None = None,
        settings: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        self._make = make
        self._make_some = make_some or partial(_one_by_one, make)
        self._submit = submit
        self._next = start
        self._stop = stop
        self._ahead = ahead
        self._pending: deque[Any] = deque()
        self._lock = threading.RLock()
        self._failure: Exception | None = None
        self._closed = False
        self._interrupted = False
        self._auto = workers is None and executor is None and ahead > 0
        self._num_slow = -1  # the first result is not judged, for it warms up
        self._thread_s: deque[float] = deque(maxlen=16)
        self._resources = _Resources(executor, max(workers or 1, 1), settings)
        self.waited_s = 0.0
        self.mode: Mode = "thread" if workers or executor is not None else "inline"
        self._finalizer = weakref.finalize(
            self, _release, self._pending, self._resources
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self._closed:
                self._refuse()
            pending = self._pending
            if self.mode == "thread":
                self._submit_ahead()
                if pending:
                    return self._awaited()
            if not pending:
                self._make_ahead()
            if pending:
                return pending.popleft()
            failure, self._failure = self._failure, None
            was_closed = self._closed  # by another thread: what failed was due to that
            self.close()
            raise StopIteration if failure is None or was_closed else _told(failure)

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

    def _refuse(self) -> NoReturn:
        if self._interrupted:
            raise RuntimeError(
                "an interrupt has met this iteration while it waited; start another "
                "from the same step"
            )
        raise StopIteration

    def _make_ahead(self) -> None:
        """Make as many as are kept, on this thread, for none is left.

        One right after the other, for what has just run is still in the processor's
        caches: between two steps of training it is not, and takes several times as
        long. A slow one gains nothing by that, so nobody is kept waiting for the next.
        """
        is_first = self._num_slow < 0  # not kept waiting for a second, and not judged
        first, num = self._next, 1 if is_first else self._ahead + 1
        if self._stop is not None:
            num = min(num, self._stop - first)
        if num < 1:
            return
        began = perf_counter()
        try:
            is_slow = self._make_some(first, num, self._add)
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            self._fail(error)
            return
        finally:
            self.waited_s += perf_counter() - began
        if is_first:
            self._num_slow = 0
            return
        num_quick = self._next - first - is_slow
        self._num_slow = max(0, self._num_slow - num_quick)
        if is_slow:
            self._learn_slow()

    def _add(self, result: T) -> None:
        """Keep a result; the place moves on only now, so an interrupt loses none."""
        self._pending.append(result)
        self._next += 1

    def _learn_slow(self) -> None:
        """Move to a thread when slow results outnumber quick ones by three."""
        self._num_slow += 1
        if self._num_slow == 3 and self._auto:
            self.mode = "thread"
            self._thread_s.clear()

    def _submit_ahead(self) -> None:
        """Have results made by others; or, where they are quick, let those run out."""
        times = self._thread_s
        if len(times) == times.maxlen and max(times.copy()) < QUICK_S:
            if not self._pending:
                self.mode = "inline"
                self._num_slow = 0
            return
        while len(self._pending) <= self._ahead and self._next != self._stop:
            try:
                self._pending.append(self._submitted(self._next))
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._fail(error)
                return
            self._next += 1

    def _submitted(self, number: int) -> Future[T]:
        executor = self._resources.executor()
        if self._auto:
            return executor.submit(_timed, self._make, number, self._thread_s)
        if self._submit is None:
            return executor.submit(self._make, number)
        return self._submit(number, executor)

    def _fail(self, error: Exception) -> None:
        """Make no more; the error is raised after what was made before it."""
        self._failure = error
        self._stop = self._next

    def _awaited(self) -> T:
        """Return the first result, waiting for it; or raise, and make no more."""
        head = self._pending[0]
        if isinstance(head, Future):
            began = perf_counter()
            head = self._outcome(head)
            self.waited_s += perf_counter() - began
        if self._pending:  # else closed by another thread while this one waited
            self._pending.popleft()
        return head

    def _outcome(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError:
            ended = self._closed
            self.close()
            if ended:
                raise StopIteration from None
            raise RuntimeError(
                "the executor dropped work it had accepted; it must stay open while "
                "batches are made, so start from this step with a fresh one"
            ) from None
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        except BaseException:
            # Ctrl-C: what has not begun must not keep the program from ending.
            self._closed = self._interrupted = True
            _release(self._pending, self._resources)
            raise
        self.close()
        raise _told(failure)


def _one_by_one(
    make: Callable[[int], T], number: int, num: int, add: Callable[[T], None]
) -> bool:
    """Make results each by itself; see `MakeSome`."""
    for at in range(number, number + num):
        began = perf_counter()
        add(make(at))
        if perf_counter() - began > SLOW_S:
            return True
    return False


def _told(error: Exception) -> Exception:
    """Return what the consumer is told: an end of the work is one of the iteration."""
    if isinstance(error, EndOfWorkError):
        return StopIteration()
    if isinstance(error, StopIteration):
        # Let through, it would end the consumer's loop as if all were done.
        told = RuntimeError("making a batch raised StopIteration")
        told.__cause__ = error
        return told
    return error


class _Resources:
    """The executor of one prefetcher: given, or its own threads, made when needed."""

    def __init__(
        self,
        given: Executor | None,
        workers: int,
        settings: Callable[[], Callable[[], None]] | None,
    ) -> None:
        self._given = given
        self._own: ThreadPoolExecutor | None = None
        self._workers = workers
        self._settings = settings

    def executor(self) -> Executor:
        """Return the executor, which may start threads from now on."""
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = ThreadPoolExecutor(
                self._workers,
                thread_name_prefix="roxxel-loader",
                initializer=None if self._settings is None else self._settings(),
            )
        return self._own

    def release(self, *, wait: bool) -> None:
        """End the threads, if they are own ones."""
        if self._own is not None:
            self._own.shutdown(wait=wait, cancel_futures=True)


def _release(
    pending: deque[T | Future[T]],
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
