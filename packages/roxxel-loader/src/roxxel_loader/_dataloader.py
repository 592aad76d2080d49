"""Dataloader: batches of any dataset, in an order that depends on integers alone."""

from __future__ import annotations

import copy
import operator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

import jax

from ._arguments import check_at_least, check_callable, check_integers
from ._batches import Batches
from ._checks import (
    check_batches,
    check_indexed,
    check_process,
    check_start,
    check_stream,
)
from ._finisher import Finisher
from ._iteration import DataloaderIterator
from ._prefetch import EndOfWorkError, Prefetcher
from ._process_rows import process_rows, sharded_rows
from ._stream_batches import PastEndError, StreamBatches
from .datasets import StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from ._process_rows import Rows
    from .datasets import Dataset
    from .sharding._layout import ShardingLike

B = TypeVar("B")
C = TypeVar("C")


class Dataloader(Generic[B]):
    """Batches of a dataset; iterating it twice gives the same batches twice.

    Steps count from 0 over all epochs, so a run resumes by one integer: iterate with
    `start_step=k` and get what an unbroken iteration gives from its step k on. Batches
    do not depend on `workers` and `prefetch`, nor, as a whole, on the number of
    processes: each loads only its rows of every batch.

    Args:
        dataset: Items by index, or a `StreamingDataset`.
        batch_size: Items per batch, over all processes.
        workers: Threads, each of which makes a whole batch at a time; 0 makes each
            batch on the consumer's thread when it is requested.
        prefetch: Batches made beyond the requested one; at least one per worker. 0
            makes batches only when they are requested.
        shuffle: Whether each epoch has an order of its own, computed from the seed; a
            stream shuffles by its own method.
        seed: Of the shuffle; any integer.
        drop_last: Whether to drop the last batch of an epoch if it is short.
        collate: Makes a batch of a list of items; the default stacks leaves.
        sharding: Sharding of the global arrays, or a function from global shape to
            sharding, also called with `(rows,)`. None yields the result of `collate`,
            by default numpy arrays, for the rows of this process.
        start_step: First step. A stream of several epochs, or one that cannot seek, is
            read from its beginning to get there; nothing is mapped on the way.
        epochs: Times to go through the dataset; None goes on for ever.
        executor: Loads the items of each batch, in processes for instance; it is left
            open. A worker process gets the pickled dataset once. Settings such as
            `with jax.enable_x64(True)` do not reach the executor.
        progress: Called after each batch with the steps done and their total, if known.
        process_index: This process's number; by default JAX's.
        process_count: The number of processes; by default JAX's.

    Raises:
        ValueError: There are no items or no whole batch, or a number is out of range.
        TypeError: `dataset` is not a dataset, a stream has `shuffle` or an executor of
            processes, or an argument is not an integer or not a function.
    """

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
        collate: Callable[[Sequence[Any]], B] | None = None,
        sharding: ShardingLike = None,
        start_step: int = 0,
        epochs: int | None = 1,
        executor: Executor | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
    ) -> None:
        check_at_least(1, batch_size=batch_size)
        check_at_least(0, prefetch=prefetch, start_step=start_step)
        check_integers(seed=seed)
        check_at_least(0, workers=workers)
        if epochs is not None:
            check_at_least(0, epochs=epochs)
        if collate is not None:
            check_callable(collate=collate)
        if progress is not None:
            check_callable(progress=progress)
        check_process(process_index, process_count)
        self._process = (
            None
            if process_index is None or process_count is None
            else (process_index, process_count)
        )
        self._workers = workers
        self._prefetch = prefetch
        self._sharding = sharding
        self._executor = executor
        self._progress = progress
        self._collate = collate
        self._functions: tuple[Callable[[Any], Any], ...] = ()
        self._dataset = dataset
        # A small numpy integer would overflow in the arithmetic below.
        self._batch_size = operator.index(batch_size)
        self._shuffle = shuffle
        self._seed = operator.index(seed)
        self._drop_last = drop_last
        self._start = operator.index(start_step)
        self._epochs = epochs = None if epochs is None else operator.index(epochs)
        self._stop = None
        if isinstance(dataset, StreamingDataset):
            check_stream(shuffle=shuffle, executor=executor)
            return
        check_indexed(dataset)
        check_batches(dataset, batch_size, self.steps_per_epoch)
        check_start(start_step, epochs, self.steps_per_epoch)
        self._stop = None if epochs is None else epochs * self.steps_per_epoch

    def __len__(self) -> int:
        """Return the batches of one iteration.

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

    def __iter__(self) -> DataloaderIterator[B]:
        batches = self._batches(self._start)
        batches.check()
        return DataloaderIterator(
            self._prefetcher(batches),
            self._start,
            self._stop,
            self._functions_of_placed,
            self._progress,
        )

    @property
    def steps_per_epoch(self) -> int:
        """The batches of one epoch.

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
            IndexError: The step is outside the epochs, or after the end of a stream.
        """
        if step < 0 or (self._stop is not None and step >= self._stop):
            raise IndexError(f"step {step} is outside [0, {self._stop})")
        try:
            made = self._batches(step).make(step)
        except (EndOfWorkError, PastEndError):
            raise IndexError(f"step {step} is after the end of the stream") from None
        for function in self._functions_of_placed:
            made = function(made)
        return made

    def epoch(self, epoch: int) -> Dataloader[B]:
        """Return the same batches, of one epoch alone, counted from 0.

        Raises:
            ValueError: The epoch is negative.
            TypeError: The dataset is a stream.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; give 0 or more")
        start = epoch * self.steps_per_epoch
        return self._with(_start=start, _stop=start + self.steps_per_epoch)

    def map_batches(self, function: Callable[[B], C]) -> Dataloader[C]:
        """Return a loader that applies `function`, which may be jitted, to each batch.

        With a sharding, the consumer's thread calls `function` with the global arrays,
        in order. Otherwise workers call it with the local batch, ahead.
        """
        check_callable(function=function)
        mapped = self._with(_functions=(*self._functions, function))
        return cast("Dataloader[C]", mapped)

    @property
    def _functions_of_placed(self) -> tuple[Callable[[Any], Any], ...]:
        """The functions that the consumer's thread applies, in order."""
        return self._functions if self._sharding is not None else ()

    def _with(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed

    def _batches(self, start: int) -> Batches | StreamBatches:
        finish = Finisher(self._collate, self._functions, self._sharding)
        if isinstance(self._dataset, StreamingDataset):
            return StreamBatches(
                self._dataset,
                self._batch_size,
                start=start,
                epochs=self._epochs,
                drop_last=self._drop_last,
                finish=finish,
                rows_of=self._rows_of(),
            )
        return Batches(
            self._dataset,
            self._batch_size,
            steps_per_epoch=self.steps_per_epoch,
            shuffle=self._shuffle,
            seed=self._seed,
            finish=finish,
            rows_of=self._rows_of(),
            executor=self._executor,
        )

    def _rows_of(self) -> Callable[[int], Rows]:
        sharding = self._sharding
        if sharding is not None:
            return lambda num_rows: sharded_rows(num_rows, sharding)
        index, number = self._process or (jax.process_index(), jax.process_count())
        if self._batch_size % number:
            raise ValueError(
                f"batch_size {self._batch_size} does not divide over {number} "
                "processes; choose a multiple, or pass sharding="
            )
        return lambda num_rows: process_rows(num_rows, index, number)

    def _prefetcher(self, batches: Batches | StreamBatches) -> Prefetcher[B]:
        workers, ahead, executor = self._workers, self._prefetch, self._executor
        if executor is not None and isinstance(batches, Batches):
            # The executor loads items. These threads wait for it and collate.
            workers, executor = max(workers, ahead + 1), None
        if ahead:
            ahead = max(ahead, workers - 1)
        return Prefetcher(
            batches.make,
            self._start,
            self._stop,
            ahead=ahead,
            workers=workers,
            executor=executor,
        )
