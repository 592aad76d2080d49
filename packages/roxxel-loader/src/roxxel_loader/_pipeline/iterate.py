"""The one iterator: threads prefetch batches, and `next()` returns them in step order.

A batch must not depend on the thread that makes the batch, so each thread adopts the
thread-local JAX settings of the first consumer, such as `with jax.enable_x64(True):`
and `with jax.set_mesh(mesh):`. The older `with mesh:` does not reach the threads.
Functions of global arrays run on the consumer's thread, because all processes must
dispatch computations to devices in the same order.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast

import jax

from roxxel_loader.sharding._global_arrays import copy_parts, put_on_devices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from roxxel_loader.sharding._global_arrays import HostBatch, Layout, Shape

B = TypeVar("B")
T = TypeVar("T")

_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_device": jax.default_device,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}
"""Each JAX setting that changes results, and its context manager."""

_FEWEST_AHEAD, _MOST_AHEAD = 2, 16
_BYTES_AHEAD = 4 << 20
"""Bytes of global batches to prefetch, if the caller gives no number of batches. Steps
with small batches are short, so more batches are needed to bridge a pause of a slow
source."""


@dataclass(frozen=True)
class StreamStats:
    """The number of batches that an iteration returned, and the seconds spent.

    `read_s`, `assemble_s` and `transfer_s` are summed over all threads and cover only
    the batches that `next()` has returned. No value ever decreases.

    Attributes:
        steps: Number of batches that `next()` has returned.
        waited_s: Seconds that the consumer spent in `next()`; summed over the threads
            that share an iterator.
        read_s: Seconds spent loading and collating batches on the host.
        assemble_s: Seconds spent copying batches to aligned host memory.
        transfer_s: Seconds spent in the JAX calls that create the global arrays. The
            copy to an accelerator continues in the background.

    Example:
        >>> batches = iter(Dataloader([1, 2, 3, 4], batch_size=2))
        >>> batch = next(batches)
        >>> batches.stats.steps
        1
    """

    steps: int
    waited_s: float
    read_s: float
    assemble_s: float
    transfer_s: float


@dataclass(frozen=True)
class Progress:
    """How many batches and items are done; steps before `start_step` count as done.

    Attributes:
        batches_processed: Number of batches done.
        batches_total: Number of batches in all epochs; None if unknown or infinite.
        items_processed: Number of items in the batches done, over all processes; None
            for a stream.
        items_total: Number of items in all epochs; None if unknown or infinite.

    Example:
        >>> batches = iter(Dataloader([1, 2, 3], batch_size=2))
        >>> batch = next(batches)
        >>> batches.progress().items_processed, batches.progress().items_total
        (2, 3)
    """

    batches_processed: int
    batches_total: int | None
    items_processed: int | None
    items_total: int | None


class Made(NamedTuple):
    """The batch of a step, the bytes of its global arrays, and each stage's seconds.

    `num_bytes` is 0 for a batch that is not moved to devices.
    """

    step: int
    batch: Any
    num_bytes: int
    read_s: float
    assemble_s: float
    transfer_s: float


def make_global(
    read: Callable[[int], HostBatch], layout_of: Callable[[Shape], Layout], step: int
) -> Made:
    """Read a batch, copy its values to aligned memory, and make global arrays."""
    began = perf_counter()
    leaves, tree = read(step)
    was_read = perf_counter()
    laid_out = [(leaf, layout_of(leaf.shape)) for leaf in leaves]
    copies = [(layout, copy_parts(leaf, layout)) for leaf, layout in laid_out]
    assembled = perf_counter()
    arrays = [put_on_devices(layout, copy) for layout, copy in copies]
    return Made(
        step,
        jax.tree.unflatten(tree, arrays),
        sum(array.nbytes for array in arrays),
        was_read - began,
        assembled - was_read,
        perf_counter() - assembled,
    )


def make_local(read: Callable[[int], Any], step: int) -> Made:
    """Read a batch without moving it to devices."""
    began = perf_counter()
    batch = read(step)
    return Made(step, batch, 0, perf_counter() - began, 0.0, 0.0)


def apply_all(functions: Sequence[Callable[[Any], Any]], batch: Any) -> Any:
    """Apply the functions to the batch, in order."""
    for function in functions:
        batch = function(batch)
    return batch


class EndOfWorkError(Exception):
    """Raised by the function that makes batches if no step is left."""


class BatchIterator(Generic[B]):
    """Iterator over the batches of consecutive steps; a context manager.

    Several threads may share an iterator: `next()` returns each batch to one thread.

    If making a batch or telling the progress fails, the `next()` that would return the
    batch raises the error. The error ends the iteration.

    After an interrupt (Ctrl-C) in `next()`, the following `next()` returns the batch of
    the same step. Two kinds of interrupts are different: an interrupt while a stream
    with `workers=0` is read, and an interrupt in a function of `map_batches` of a
    loader with a sharding. After these, start a new iteration at `step`.

    `close()` and the end of a `with` block stop the threads. The threads also stop when
    the iterator is garbage-collected.

    Attributes:
        step: The step of the next batch. To resume, pass this number as `start_step=`
            of `Dataloader`, or as `start` of `device_stream`.
        stop: One past the last step; None if unknown, or if the iteration never ends.

    Example:
        >>> with iter(Dataloader([1, 2, 3, 4], batch_size=2)) as batches:
        ...     print(next(batches), batches.step)
        [1 2] 1
    """

    def __init__(
        self,
        make: Callable[[int], Made],
        start: int,
        stop: int | None,
        *,
        ahead: int | None,
        workers: int,
        executor: Executor | None = None,
        functions: Sequence[Callable[[Any], Any]] = (),
        progress: Callable[[int, int | None], None] | None = None,
        count_items: Callable[[int], int] | None = None,
    ) -> None:
        """Make batches on `workers` threads or on `executor`, which is never shut down.

        `ahead` is the number of batches to prefetch; None means a number that fits the
        size of a batch (`_num_ahead`). With `workers=0` and no executor, `next()` makes
        each batch itself. `count_items(step)` returns the number of items before
        `step`.
        """
        self._make = make
        self._start = start
        self._next = start
        self._fits_ahead = ahead is None
        self._ahead = _FEWEST_AHEAD if ahead is None else ahead
        self._workers = workers
        self._executor = executor
        self._functions = functions
        self._progress = progress
        self._count_items = count_items
        self._threads: ThreadPoolExecutor | None = None
        self._pending: deque[Future[Made]] = deque()
        self._lock = threading.Lock()
        # A thread holds `_turn` while it waits for a batch. `close` needs only `_lock`,
        # so it can end this wait.
        self._turn = threading.RLock()
        self._closed = False
        self._finalizer: weakref.finalize[..., Self] | None = None
        self._waited_s = 0.0
        self._stages_s = (0.0, 0.0, 0.0)
        self.step = start
        self.stop = stop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        began = perf_counter()
        with self._turn:
            try:
                step, made, _, *stages_s = self._next_made()
                batch = guarded(lambda _: apply_all(self._functions, made), step)
            except Exception as error:
                was_closed = self._closed
                self.close()
                if isinstance(error, StopIteration | EndOfWorkError) or was_closed:
                    raise StopIteration from None
                raise
            finally:
                self._waited_s += perf_counter() - began
            pairs = zip(self._stages_s, stages_s, strict=True)
            self._stages_s = tuple(total + more for total, more in pairs)
            if self._progress is not None:
                try:
                    self._progress(self.step + 1, self.stop)
                except Exception:
                    self.close()
                    raise
            # Last, so that the next call notices a batch that an interrupt lost.
            self.step += 1
            return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the batches that no thread has begun; wait for all threads to end."""
        with self._lock:
            self._closed = True
            _release(self._pending, None)
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        if self._finalizer is not None:
            self._finalizer.detach()

    @property
    def stats(self) -> StreamStats:
        """The number of batches returned, and the seconds spent, until now."""
        return StreamStats(self.step - self._start, self._waited_s, *self._stages_s)

    def progress(self) -> Progress:
        """Return how many batches and items are done, and how many there are."""
        count, stop = self._count_items, self.stop
        return Progress(
            self.step,
            stop,
            None if count is None else count(self.step),
            None if count is None or stop is None else count(stop),
        )

    def _next_made(self) -> Made:
        made = self._take()
        if made.step != self.step:
            raise RuntimeError(
                f"an interrupt lost the batch of step {self.step}; iterate again from "
                f"step {self.step}"
            )
        return made

    def _take(self) -> Made:
        if self._workers == 0 and self._executor is None:
            if self._closed or self._next == self.stop:
                raise StopIteration
            result = guarded(self._make, self._next)
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
                "the executor cancelled an accepted batch; keep the executor open "
                "until the iteration ends, and iterate again from this step"
            ) from None
        with self._lock:
            if self._pending:  # empty if this iterator was closed
                self._pending.popleft()
            if self._fits_ahead:
                self._ahead = _num_ahead(result.num_bytes)
        return result

    def _submit_ahead(self) -> None:
        stop = self.step + self._ahead + 1
        if self.stop is not None:
            stop = min(stop, self.stop)
        while self._next < stop and not self._closed:
            executor = self._executor or self._own_threads()
            self._pending.append(executor.submit(guarded, self._make, self._next))
            self._next += 1

    def _own_threads(self) -> ThreadPoolExecutor:
        """Return the threads; they have the JAX settings of the first caller."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._workers,
                thread_name_prefix="roxxel-loader",
                initializer=_settings_here(),
            )
            self._finalizer = weakref.finalize(
                self, _release, self._pending, self._threads
            )
        return self._threads


def _num_ahead(num_bytes: int) -> int:
    """Return the number of batches to prefetch if each has this many bytes."""
    return min(_MOST_AHEAD, max(_FEWEST_AHEAD, _BYTES_AHEAD // max(1, num_bytes)))


def guarded(make: Callable[[int], T], step: int) -> T:
    """Return `make(step)`; add a note with the step to each error.

    A StopIteration, which would silently end the consumer's loop, becomes a
    RuntimeError.
    """
    try:
        return make(step)
    except StopIteration as error:
        raise RuntimeError(
            f"making the batch of step {step} raised StopIteration"
        ) from error
    except Exception as error:
        error.add_note(f"while making the batch of step {step}")
        raise


def _release(pending: deque[Future[Any]], threads: ThreadPoolExecutor | None) -> None:
    """Cancel pending batches; do not wait, because a finalizer may run on a worker."""
    while pending:
        pending.pop().cancel()
    if threads is not None:
        threads.shutdown(wait=False, cancel_futures=True)


def _settings_here() -> Callable[[], None]:
    """Return a function that gives other threads the JAX settings of this thread."""
    config = cast("Any", jax.config)
    wanted = {name: getattr(config, name) for name in _SETTINGS}
    mesh = jax.sharding.get_mesh()

    def adopt() -> None:
        for name, value in wanted.items():
            if getattr(config, name) != value:
                _SETTINGS[name](value).__enter__()
        if not mesh.empty:
            jax.set_mesh(mesh).__enter__()

    return adopt
