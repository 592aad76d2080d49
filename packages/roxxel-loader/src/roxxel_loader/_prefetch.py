"""Ordered, bounded read-ahead: jobs run before they are asked for, results in order.

Handing a result from thread to thread costs more than a result that takes less than
about a millisecond, so the default runs jobs ahead on the consumer's own thread, while
the device computes what was dispatched before, and moves to a thread only where jobs
are measured to be slow. The order of the results never depends on where they were made.
"""

from __future__ import annotations

import statistics
import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Generic, Literal, Protocol, Self, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

Mode = Literal["inline", "thread"]

SLOW_JOB_S = 1e-3
"""Median time of a job from which a thread is worth its handover."""

QUICK_JOB_S = 2.5e-4
"""Median time of a job below which the thread is given up again."""


class Job(Protocol[T]):
    """One result to make: on the calling thread, or with an executor's help."""

    def run(self) -> T:
        """Make the result now."""
        ...

    def submit(self, executor: Executor) -> Future[T]:
        """Have the result made; cancelling the future stops what has not begun."""
        ...


class Call(Generic[T]):
    """A job that is one call of one function."""

    __slots__ = ("_argument", "_function")

    def __init__(self, function: Callable[[int], T], argument: int) -> None:
        self._function = function
        self._argument = argument

    def run(self) -> T:
        """Call the function on this thread."""
        return self._function(self._argument)

    def submit(self, executor: Executor) -> Future[T]:
        """Call the function in the executor."""
        return executor.submit(self._function, self._argument)


class _Made(Generic[T]):
    """The outcome of a job that ran on the consumer's thread."""

    __slots__ = ("error", "value")

    def __init__(self, value: T | None, error: Exception | None) -> None:
        self.value = value
        self.error = error


class Prefetcher(Generic[T]):
    """Iterator over the results of jobs, in the order of the jobs, made ahead.

    An exception is raised at the result it belongs to, with the traceback of the thread
    it came from, and ends the iteration. `close()` (also by `with`) waits for the jobs
    that are running; an abandoned prefetcher lets them finish and its threads go.

    Args:
        jobs: The work in order; drawn from on the consumer's thread only.
        ahead: Results kept beyond the one asked for; 0 works only when asked.
        workers: Threads that make results; 0 makes them all on the consumer's thread;
            None measures, and takes one thread where jobs are slow.
        executor: Makes the results instead of own threads; it is left open.
        on_inline: Told each result made on the consumer's thread.
    """

    def __init__(
        self,
        jobs: Iterator[Job[T]],
        *,
        ahead: int,
        workers: int | None = None,
        executor: Executor | None = None,
        on_inline: Callable[[T], None] | None = None,
    ) -> None:
        self._jobs = jobs
        self._job: Job[T] | None = None
        self._exhausted = False
        self._ahead = ahead
        self._on_inline = on_inline
        self._pending: deque[_Made[T] | Future[T]] = deque()
        self._lock = threading.RLock()
        self._closed = False
        self._auto = workers is None and executor is None and ahead > 0
        self._warm = False
        self._inline_s: deque[float] = deque(maxlen=5)
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
            if self._closed:
                raise StopIteration
            if self._auto:
                self._choose_mode()
            self._fill()
            if not self._pending:
                self.close()
                raise StopIteration
            head = self._pending[0]
            try:
                value = _outcome(head)
            except CancelledError:
                if self._closed:
                    raise StopIteration from None
                self.close()
                raise RuntimeError(
                    "the executor dropped work it had accepted; it must stay open "
                    "while batches are made, so start from this step with a fresh one"
                ) from None
            except Exception:
                self.close()
                raise
            if self._pending:  # else closed by another thread while this one waited
                self._pending.popleft()
            return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was made ahead and wait for the jobs that are running."""
        self._closed = True
        _release(self._pending, self._resources)
        with self._lock:  # a consumer in another thread may have added a last job
            _release(self._pending, self._resources, wait=True)
        self._finalizer.detach()

    def _choose_mode(self) -> None:
        if self.mode == "inline":
            times = self._inline_s
            if len(times) >= 3 and statistics.median(times) > SLOW_JOB_S:
                self.mode = "thread"
                self._thread_s.clear()
        elif len(self._thread_s) == self._thread_s.maxlen and (
            statistics.median(list(self._thread_s)) < QUICK_JOB_S
        ):
            self.mode = "inline"
            self._inline_s.clear()

    def _fill(self) -> None:
        if self.mode == "thread":
            while len(self._pending) <= self._ahead and self._draw():
                self._pending.append(self._submitted(cast("Job[T]", self._job)))
                self._job = None
            return
        last = self._pending[-1] if self._pending else None
        if isinstance(last, Future) and not last.done():
            return  # one thread at a time works on the jobs
        # The first result is not kept waiting for the second; then one more a turn.
        budget = 2 if self._warm else 1
        while budget and len(self._pending) <= self._ahead and self._draw():
            self._pending.append(self._made(cast("Job[T]", self._job)))
            self._job = None
            budget -= 1
        self._warm = True

    def _draw(self) -> bool:
        """Have the next job in hand; it stays there until it has run or is taken."""
        if self._job is None and not self._exhausted:
            self._job = next(self._jobs, None)
            self._exhausted = self._job is None
        return self._job is not None

    def _made(self, job: Job[T]) -> _Made[T]:
        began = perf_counter()
        try:
            value = job.run()
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            self._exhausted = True
            return _Made(None, error)
        if self._auto and self._warm:
            self._inline_s.append(perf_counter() - began)
        if self._on_inline is not None:
            self._on_inline(value)
        return _Made(value, None)

    def _submitted(self, job: Job[T]) -> Future[T] | _Made[T]:
        executor = self._resources.executor()
        try:
            if self._auto:
                return executor.submit(_timed, job, self._thread_s)
            return job.submit(executor)
        except Exception as error:  # noqa: BLE001 - raised when its turn comes
            self._exhausted = True
            return _Made(None, error)


def _outcome(entry: _Made[T] | Future[T]) -> T:
    """Return the result of a job, waiting for it, or raise its exception."""
    try:
        if isinstance(entry, Future):
            return entry.result()
        if entry.error is not None:
            raise entry.error
    except StopIteration as error:
        # Let through, it would end the consumer's loop as if all were done.
        raise RuntimeError("StopIteration was raised while a batch was made") from error
    return cast("T", entry.value)


class _Resources:
    """The executor of one prefetcher: given, or its own threads, made when needed."""

    def __init__(self, given: Executor | None, workers: int) -> None:
        self._given = given
        self._own: ThreadPoolExecutor | None = None
        self._workers = workers

    def executor(self) -> Executor:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = ThreadPoolExecutor(
                self._workers, thread_name_prefix="roxxel-loader"
            )
        return self._own

    def release(self, *, wait: bool) -> None:
        if self._own is not None:
            self._own.shutdown(wait=wait, cancel_futures=True)


def _release(
    pending: deque[_Made[T] | Future[T]],
    resources: _Resources,
    *,
    wait: bool = False,
) -> None:
    """Stop the work; a finalizer must not wait, for it may run in a worker itself."""
    while pending:
        entry = pending.pop()
        if isinstance(entry, Future):
            entry.cancel()
    resources.release(wait=wait)


def _timed(job: Job[T], seconds: deque[float]) -> T:
    began = perf_counter()
    value = job.run()
    seconds.append(perf_counter() - began)
    return value
