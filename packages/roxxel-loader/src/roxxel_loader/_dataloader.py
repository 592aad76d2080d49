"""`Dataloader`: batches of any dataset, each a function of the seed and the step."""

from __future__ import annotations

import copy
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import jax
from roxxel_store.arguments import as_integer

from ._arguments import check_bool, check_callable
from ._pipeline.collate import (
    as_host_batch,
    local_batch,
    process_rows,
    sharded_rows,
)
from ._pipeline.indexed import IndexedItems
from ._pipeline.iterate import (
    BatchIterator,
    EndOfWorkError,
    apply_all,
    guarded,
    make_global,
    make_local,
)
from ._pipeline.streamed import PastEndError, StreamedItems
from .datasets import Dataset, StreamingDataset
from .sharding._global_arrays import layouts

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    import numpy as np
    import numpy.typing as npt
    from jax.sharding import Sharding

    from ._pipeline.collate import Rows
    from ._pipeline.iterate import Made
    from .sharding._global_arrays import HostBatch, Shape, ShardingLike

    Leaf: TypeAlias = (
        complex | str | bytes | npt.NDArray[Any] | np.generic[Any] | jax.Array
    )
    Split: TypeAlias = Sharding | Callable[[Shape], Sharding]

B = TypeVar("B")
C = TypeVar("C")
T = TypeVar("T")
K = TypeVar("K")
L = TypeVar("L", bound="Leaf")
Row = TypeVar("Row", bound="tuple[Leaf, ...]")


class Options(TypedDict, total=False):
    """Arguments of a `Dataloader` that do not change the type of its batches."""

    workers: int
    prefetch: int
    shuffle: bool
    seed: int
    drop_last: bool
    start_step: int
    epochs: int | None
    executor: Executor | None
    progress: Callable[[int, int | None], None] | None
    process_index: int | None
    process_count: int | None


class Dataloader(Generic[B]):
    """Batches of a dataset; every iteration gives the same batches.

    Steps count from 0 over all epochs, so a run resumes from one integer: with
    `start_step=k`, the first batch is batch k of an uninterrupted iteration. Batches do
    not depend on `workers` or `prefetch`. Global batches do not depend on the number of
    processes. Each process loads only its own rows.

    Args:
        dataset: Items by index, or a `StreamingDataset`.
        batch_size: Items per batch, over all processes.
        workers: Threads, each of which makes a whole batch at a time. With 0, the
            consumer's thread makes each batch when it is requested.
        prefetch: Number of batches to prefetch. Positive numbers are raised to at least
            `workers - 1`. With 0, none is prefetched.
        shuffle: Whether to shuffle each epoch, in an order computed from the seed and
            the epoch. For a stream, call `StreamingDataset.shuffle` instead.
        seed: Seed of the shuffle; any integer.
        drop_last: Whether to drop a short last batch of an epoch.
        collate: Function from a list of items to a batch; the default stacks leaves. It
            returns new arrays each time, because batches wait to be used.
        sharding: Sharding of the global arrays, or a function from global shape to
            sharding. The loader also calls the function with `(num_rows,)` to find the
            rows of this process. With None, each batch is what `collate` returns for
            the rows of this process: numpy arrays by default.
        start_step: First step. A stream is read from its beginning if it has several
            epochs, a filter or no `seek`. Even then, maps after the last filter are not
            called for items before `start_step`.
        epochs: Number of passes over the dataset; with None, the iteration never ends.
        executor: Loads the items of each batch, for instance in processes. For a
            stream, the executor makes whole batches. The loader never shuts down the
            executor. A worker process receives the pickled dataset once. JAX settings
            such as `with jax.enable_x64(True)` do not apply in the executor.
        progress: Called after each batch with the number of steps done and the total
            number of steps; the total is None if unknown or infinite.
        process_index: Index of this process; by default `jax.process_index()`.
        process_count: Number of processes; by default `jax.process_count()`.

    Raises:
        ValueError: The items do not fill one batch, the dataset is empty although
            `epochs` is None, or a number is out of range.
        TypeError: `dataset` is neither a `Dataset` nor a `StreamingDataset`; `shuffle`
            or an executor of processes is given for a stream; a number is not an
            integer, or a flag is not a bool; or `collate` or `progress` is not a
            function.

    Example:
        >>> loader = Dataloader([10, 11, 12, 13, 14], 2, shuffle=True, epochs=None)
        >>> len(loader.batch(0)), len(loader.batch(2)), loader.steps_per_epoch
        (2, 1, 3)
    """

    @overload
    def __init__(
        self: Dataloader[npt.NDArray[Any]],
        dataset: Dataset[L] | StreamingDataset[L],
        batch_size: int,
        *,
        collate: None = None,
        sharding: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataloader[dict[K, npt.NDArray[Any]]],
        dataset: Dataset[dict[K, L]] | StreamingDataset[dict[K, L]],
        batch_size: int,
        *,
        collate: None = None,
        sharding: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataloader[tuple[npt.NDArray[Any], ...]],
        dataset: Dataset[Row] | StreamingDataset[Row],
        batch_size: int,
        *,
        collate: None = None,
        sharding: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataloader[jax.Array],
        dataset: Dataset[L] | StreamingDataset[L],
        batch_size: int,
        *,
        collate: None = None,
        sharding: Split,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataloader[dict[K, jax.Array]],
        dataset: Dataset[dict[K, L]] | StreamingDataset[dict[K, L]],
        batch_size: int,
        *,
        collate: None = None,
        sharding: Split,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataloader[tuple[jax.Array, ...]],
        dataset: Dataset[Row] | StreamingDataset[Row],
        batch_size: int,
        *,
        collate: None = None,
        sharding: Split,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self,
        dataset: Dataset[T] | StreamingDataset[T],
        batch_size: int,
        *,
        collate: Callable[[list[T]], B],
        sharding: None = None,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Dataloader[Any],
        dataset: Dataset[T] | StreamingDataset[T],
        batch_size: int,
        *,
        collate: Callable[[list[T]], Any] | None = None,
        sharding: ShardingLike = None,
        **options: Unpack[Options],
    ) -> None: ...

    def __init__(
        self,
        dataset: Dataset[Any] | StreamingDataset[Any],
        batch_size: int,
        *,
        workers: int = 1,
        prefetch: int = 2,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        collate: Callable[[list[Any]], Any] | None = None,
        sharding: ShardingLike = None,
        start_step: int = 0,
        epochs: int | None = 1,
        executor: Executor | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
    ) -> None:
        self._batch_size = as_integer("batch_size", batch_size, 1)
        self._prefetch = as_integer("prefetch", prefetch, 0)
        self._start = as_integer("start_step", start_step, 0)
        self._seed = as_integer("seed", seed)
        self._workers = as_integer("workers", workers, 0)
        if epochs is not None:
            epochs = as_integer("epochs", epochs, 0)
        self._epochs = epochs
        check_bool(shuffle=shuffle, drop_last=drop_last)
        if collate is not None:
            check_callable(collate=collate)
        if progress is not None:
            check_callable(progress=progress)
        self._process = _checked_process(process_index, process_count)
        self._sharding = sharding
        self._executor = executor
        self._progress = progress
        self._collate = collate
        self._functions: tuple[Callable[[Any], Any], ...] = ()
        self._dataset = dataset
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._stop = None
        if isinstance(dataset, StreamingDataset):
            _check_stream(shuffle=shuffle, executor=executor)
            return
        _check_indexed(dataset)
        _check_batches(dataset, batch_size, epochs, self.steps_per_epoch)
        _check_start(start_step, epochs, self.steps_per_epoch)
        self._stop = None if epochs is None else epochs * self.steps_per_epoch

    def __len__(self) -> int:
        """Return the number of batches in one iteration.

        Raises:
            TypeError: The iteration never ends, or the dataset is a stream.
        """
        if isinstance(self._dataset, StreamingDataset):
            raise TypeError("a Dataloader of a stream has no known length")
        if self._stop is None:
            raise TypeError(
                "a Dataloader with epochs=None never ends and has no length"
            )
        return self._stop - self._start

    def __iter__(self) -> BatchIterator[B]:
        items = self._items(self._start)
        items.check()
        workers, ahead, executor = self._workers, self._prefetch, self._executor
        if executor is not None and isinstance(items, IndexedItems):
            # A thread blocks until the executor has loaded the items of a batch, so
            # every batch in flight needs a thread.
            workers, executor = max(workers, ahead + 1), None
        return BatchIterator(
            self._make(items),
            self._start,
            self._stop,
            ahead=max(ahead, workers - 1) if ahead else 0,
            workers=workers,
            executor=executor,
            functions=self._functions_of_placed,
            progress=self._progress,
            count_items=self._items_before if self._is_indexed else None,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in one epoch.

        Raises:
            TypeError: The dataset is a stream.
        """
        if isinstance(self._dataset, StreamingDataset):
            raise TypeError("a stream has no known number of steps per epoch")
        whole, rest = divmod(len(self._dataset), self._batch_size)
        return whole + (1 if rest and not self._drop_last else 0)

    def batch(self, step: int) -> B:
        """Return the batch of one step.

        Raises:
            IndexError: `step` is negative, or after the last step.
        """
        step = as_integer("step", step)
        if self._stop is None and step < 0:
            raise IndexError(f"step is {step}; give 0 or more")
        if self._stop is not None and not 0 <= step < self._stop:
            raise IndexError(f"step {step} is outside [0, {self._stop})")
        try:
            made = guarded(self._make(self._items(step)), step)
        except (EndOfWorkError, PastEndError):
            raise IndexError(f"step {step} is after the end of the stream") from None
        return apply_all(self._functions_of_placed, made.batch)

    def epoch(self, epoch: int) -> Dataloader[B]:
        """Return a loader of one epoch, counted from 0.

        `epoch` may be larger than this loader's `epochs`, so a program may loop over
        `epoch(0)`, `epoch(1)` and so on, and omit `epochs`.

        Raises:
            ValueError: The epoch is negative.
            TypeError: The dataset is a stream.
        """
        start = as_integer("epoch", epoch, 0) * self.steps_per_epoch
        return self._with(_start=start, _stop=start + self.steps_per_epoch)

    def map_batches(self, function: Callable[[B], C]) -> Dataloader[C]:
        """Return a loader that applies `function`, which may be jitted, to each batch.

        With a sharding, the consumer's thread calls `function` with the global arrays,
        in step order. Without a sharding, the thread that makes a batch calls
        `function` with the rows of this process.
        """
        check_callable(function=function)
        mapped = self._with(_functions=(*self._functions, function))
        return cast("Dataloader[C]", mapped)

    @property
    def _functions_of_placed(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions of `map_batches` that the consumer's thread calls."""
        return self._functions if self._sharding is not None else ()

    @property
    def _is_indexed(self) -> bool:
        return not isinstance(self._dataset, StreamingDataset)

    def _items_before(self, step: int) -> int:
        """Return the number of items before `step`, over all processes."""
        num_items = len(cast("Dataset[Any]", self._dataset))
        num_steps = self.steps_per_epoch
        epoch, step_in_epoch = divmod(step, num_steps) if num_steps else (0, 0)
        num_used = min(num_items, num_steps * self._batch_size)
        return epoch * num_used + min(step_in_epoch * self._batch_size, num_used)

    def _with(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed

    def _items(self, start: int) -> IndexedItems | StreamedItems:
        if isinstance(self._dataset, StreamingDataset):
            return StreamedItems(
                self._dataset,
                self._batch_size,
                start=start,
                epochs=self._epochs,
                drop_last=self._drop_last,
                rows_of=self._rows_of(),
            )
        return IndexedItems(
            self._dataset,
            self._batch_size,
            steps_per_epoch=self.steps_per_epoch,
            shuffle=self._shuffle,
            seed=self._seed,
            rows_of=self._rows_of(),
            executor=self._executor,
        )

    def _make(self, items: IndexedItems | StreamedItems) -> Callable[[int], Made]:
        if self._sharding is None:

            def read_local(step: int) -> Any:
                batch = local_batch(items.load(step), self._collate)
                return apply_all(self._functions, batch)

            return partial(make_local, read_local)

        def read(step: int) -> HostBatch:
            loaded = items.load(step)
            return as_host_batch(local_batch(loaded, self._collate), loaded.rows)

        return partial(make_global, read, layouts(self._sharding))

    def _rows_of(self) -> Callable[[int], Rows]:
        """Return a function from the global number of rows to this process's rows."""
        sharding = self._sharding
        if sharding is not None:
            return cache(lambda num_rows: sharded_rows(num_rows, sharding))
        index, number = self._process or (jax.process_index(), jax.process_count())
        if self._batch_size % number:
            raise ValueError(
                f"batch_size {self._batch_size} does not divide over {number} "
                "processes; choose a multiple, or pass sharding="
            )
        return lambda num_rows: process_rows(num_rows, index, number)


def _checked_process(
    process_index: int | None, process_count: int | None
) -> tuple[int, int] | None:
    """Check and return both arguments; return None if both are None."""
    if process_index is None and process_count is None:
        return None
    if process_index is None or process_count is None:
        raise ValueError(
            f"process_index is {process_index} and process_count is "
            f"{process_count}; give both or neither"
        )
    index = as_integer("process_index", process_index)
    count = as_integer("process_count", process_count)
    if not 0 <= index < count:
        raise ValueError(f"process_index is {index}; give an index in [0, {count})")
    return index, count


def _check_stream(*, shuffle: bool, executor: Executor | None) -> None:
    """Raise a TypeError for options that need an indexed dataset."""
    if shuffle:
        raise TypeError(
            "a stream cannot be shuffled as a whole; use "
            "StreamingDataset.shuffle(buffer_size, seed)"
        )
    if isinstance(executor, ProcessPoolExecutor):
        raise TypeError(
            "an executor of processes cannot read a stream; pass workers= or an "
            "executor of threads"
        )


def _check_indexed(dataset: Dataset[Any]) -> None:
    """Raise a TypeError if the dataset has no `__len__` or no `__getitem__`."""
    if not isinstance(cast("object", dataset), Dataset):
        raise TypeError(
            f"{type(dataset).__name__} has no __len__ or no __getitem__; to read an "
            "iterable, pass StreamingDataset(factory)"
        )


def _check_batches(
    dataset: Dataset[Any], batch_size: int, epochs: int | None, steps_per_epoch: int
) -> None:
    """Raise a ValueError if the items do not fill a batch.

    A dataset without items is an error only if `epochs` is None.
    """
    num_items = len(dataset)
    name = type(dataset).__name__
    if num_items == 0 and epochs is None:
        raise ValueError(
            f"{name} has no items, so an iteration with epochs=None would wait forever "
            "for a batch; check what the dataset reads"
        )
    if num_items and steps_per_epoch == 0:
        raise ValueError(
            f"the {num_items} items of {name} do not fill one batch of "
            f"{batch_size}; lower batch_size or pass drop_last=False"
        )


def _check_start(start_step: int, epochs: int | None, steps_per_epoch: int) -> None:
    """Raise a ValueError if `start_step` is after the last epoch."""
    if epochs is not None and start_step > epochs * steps_per_epoch:
        raise ValueError(
            f"start_step is {start_step} but {epochs} epochs of {steps_per_epoch} "
            f"steps have only {epochs * steps_per_epoch}; raise epochs"
        )
