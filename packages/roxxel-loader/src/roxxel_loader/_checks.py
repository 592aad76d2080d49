"""Checks of the arguments of a `Dataloader`."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, cast

from .datasets import Dataset

if TYPE_CHECKING:
    from concurrent.futures import Executor


def check_process(process_index: int | None, process_count: int | None) -> None:
    """Raise a ValueError unless both are None or the index is one of the processes."""
    if process_index is None and process_count is None:
        return
    if process_index is None or process_count is None:
        raise ValueError(
            f"process_index is {process_index} and process_count is "
            f"{process_count}; give both or neither"
        )
    if not 0 <= process_index < process_count:
        raise ValueError(
            f"process_index is {process_index}; give one in [0, {process_count})"
        )


def check_stream(*, shuffle: bool, executor: Executor | None) -> None:
    """Raise a TypeError for options that need an indexed dataset."""
    if shuffle:
        raise TypeError(
            "a stream cannot be shuffled as a whole; use "
            "StreamingDataset.shuffle(buffer_size, seed)"
        )
    if isinstance(executor, ProcessPoolExecutor):
        raise TypeError(
            "a stream is read in this process; pass workers= or an executor of threads"
        )


def check_indexed(dataset: Dataset[Any]) -> None:
    """Raise a TypeError if the dataset has no length or no items by index."""
    if not isinstance(cast("object", dataset), Dataset):
        raise TypeError(
            f"{type(dataset).__name__} has no length or no items by index; wrap "
            "what can only be gone through: StreamingDataset(factory)"
        )


def check_batches(dataset: Dataset[Any], batch_size: int, steps_per_epoch: int) -> None:
    """Raise a ValueError if an epoch has no batches."""
    num_items = len(dataset)
    name = type(dataset).__name__
    if num_items == 0:
        raise ValueError(
            f"{name} has no items, so there is no batch; check where it reads from"
        )
    if steps_per_epoch == 0:
        raise ValueError(
            f"the {num_items} items of {name} make no whole batch of "
            f"{batch_size}; lower batch_size or pass drop_last=False"
        )


def check_start(start_step: int, epochs: int | None, steps_per_epoch: int) -> None:
    """Raise a ValueError if the first step is beyond the last epoch."""
    if epochs is not None and start_step > epochs * steps_per_epoch:
        raise ValueError(
            f"start_step is {start_step} but there are {epochs * steps_per_epoch} "
            f"steps in {epochs} epochs of {steps_per_epoch}; raise epochs"
        )
