"""Types of a `Dataloader`'s arguments, and checks of several arguments together."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, TypedDict, cast

from roxxel_store.arguments import as_integer

from .datasets import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor


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


def checked_process(
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


def check_stream(*, shuffle: bool, executor: Executor | None) -> None:
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


def check_indexed(dataset: Dataset[Any]) -> None:
    """Raise a TypeError if the dataset has no `__len__` or no `__getitem__`."""
    if not isinstance(cast("object", dataset), Dataset):
        raise TypeError(
            f"{type(dataset).__name__} has no __len__ or no __getitem__; to read an "
            "iterable, pass StreamingDataset(factory)"
        )


def check_batches(
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


def check_start(start_step: int, epochs: int | None, steps_per_epoch: int) -> None:
    """Raise a ValueError if `start_step` is after the last epoch."""
    if epochs is not None and start_step > epochs * steps_per_epoch:
        raise ValueError(
            f"start_step is {start_step} but {epochs} epochs of {steps_per_epoch} "
            f"steps have only {epochs * steps_per_epoch}; raise epochs"
        )
