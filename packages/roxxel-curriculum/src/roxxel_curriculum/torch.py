"""Batches of a curriculum for a training loop in PyTorch. Needs `torch`, and no JAX.

An item is a step, so the loader neither shuffles, nor groups, nor divides items::

    for step, batch in enumerate(step_loader(sampler, start, num_workers=2), start):
        loss = train_step(batch)

To resume, pass the number of steps done as `start`. Worker processes, prefetching and
pinned memory are those of `torch.utils.data.DataLoader`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from roxxel_store import modules_of

from roxxel_curriculum.digest import batch_digest, from_halves, sum_digests, to_halves
from roxxel_curriculum.share import Share, next_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from roxxel_curriculum.sampler import Sampler
    from roxxel_curriculum.steps import StepIterator

__all__ = ["RankSteps", "Steps", "gather_digest", "next_token_labels", "step_loader"]

[_torch] = modules_of("roxxel_curriculum.torch", "torch for your devices", "torch")

_NOT_LEARNED = -100
"""The label that PyTorch's losses ignore."""


class Steps:
    """The batches of a run as a map-style dataset: the item of a step is its batch.

    It has no length, and so refuses samplers that change the order:
    `DistributedSampler` would give the ranks different steps, and `shuffle=True` would
    train in another order. Use `step_loader`, or pass a range of steps as the sampler
    and `batch_size=None`.

    Args:
        sampler: The sampler of the run, the same on all ranks.
        rank: Which process this is, from 0.
        world_size: Number of processes. Each gets its own rows of each batch.
        transform: Applied to each batch in its worker. A batch is a tensor, or a dict
            of tensors by field.

    Raises:
        CurriculumError: A phase has a batch size that `world_size` does not divide.
        ValueError: `rank` is not less than `world_size`.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.testing import PositionReader
        >>> curriculum = Curriculum(PositionReader(10_000), [Phase(9, 4, 129)])
        >>> Steps(curriculum.sampler(seed=42))[8].shape
        torch.Size([4, 129])
    """

    def __init__(
        self,
        sampler: Sampler,
        rank: int = 0,
        world_size: int = 1,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._share = Share(sampler, rank, world_size)
        self._transform = transform

    def __getitem__(self, step: int) -> Any:
        """Return this rank's rows of a step.

        Raises:
            IndexError: The step is outside the run.
        """
        batch = _as_tensors(self._share.batch(step))
        return batch if self._transform is None else self._transform(batch)

    def __len__(self) -> NoReturn:
        """Refuse to be sampled.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "an item is the batch of a step, so neither DistributedSampler nor "
            "shuffle=True may choose items; use "
            "roxxel_curriculum.torch.step_loader(sampler, start), with rank= and "
            "world_size= for the rows of a rank"
        )


def _as_tensors(batch: Any) -> Any:
    """Return arrays as tensors; integers become int64, as PyTorch's losses require."""
    if isinstance(batch, dict):
        fields = cast("dict[str, Any]", batch)
        return {name: _as_tensors(array) for name, array in fields.items()}
    is_integer = batch.dtype.kind in "iu"
    return _torch.from_numpy(batch.astype(np.int64) if is_integer else batch)


def step_loader(
    sampler: Sampler,
    start: int = 0,
    stop: int | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Any:
    """Return a loader of the batches of steps `[start, stop)`, in order.

    Args:
        sampler: The sampler of the run, the same on all ranks.
        start: First step: the number of steps done.
        stop: One past the last step; by default the end of the run.
        rank: Which process this is, from 0; by default that of `torch.distributed`, or
            0 where it is not initialized.
        world_size: Number of processes; by default as `rank`.
        transform: As for `Steps`.
        **options: Arguments of `torch.utils.data.DataLoader`, such as `num_workers`,
            `pin_memory` and `prefetch_factor`.

    Returns:
        A `torch.utils.data.DataLoader` whose items are the batches of the steps.

    Raises:
        CurriculumError: A phase has a batch size that `world_size` does not divide.
        ValueError: `[start, stop)` is not a range of steps of the run.
    """
    distributed: Any = _torch.distributed
    is_connected = distributed.is_available() and distributed.is_initialized()
    here: tuple[int, int] = (0, 1)
    if is_connected:
        here = distributed.get_rank(), distributed.get_world_size()
    stop = sampler.total_steps if stop is None else stop
    if not 0 <= start <= stop <= sampler.total_steps:
        raise ValueError(
            f"[{start}, {stop}) is not a range of steps of the run, which has "
            f"{sampler.total_steps}"
        )
    index = here[0] if rank is None else rank
    count = here[1] if world_size is None else world_size
    steps = Steps(sampler, index, count, transform)
    loader: Any = _torch.utils.data.DataLoader
    return loader(steps, batch_size=None, sampler=range(start, stop), **options)


def next_token_labels(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return `next_token` of a batch of tensors, with `labels` for PyTorch's losses.

    A target that the loss leaves out has the label -100. Pass this function as
    `transform`.

    Raises:
        KeyError: The batch lacks its tokens or its loss mask.

    Example:
        >>> tokens, mask = _torch.tensor([[5, 6, 7]]), _torch.tensor([[1, 1, 0]])
        >>> next_token_labels({"tokens": tokens, "loss_mask": mask})["labels"]
        tensor([[   6, -100]])
    """
    columns = next_token(batch)
    is_left_out = columns["weights"] == 0
    return {
        **columns,
        "labels": columns["targets"].masked_fill(is_left_out, _NOT_LEARNED),
    }


def gather_digest(tokens: Any, first_row: int, group: Any = None) -> int:
    """Return the digest of a whole batch; each rank passes its rows.

    All ranks of the group call this function for the same step. Ranks that hold the
    same rows, as in tensor parallelism, count once.

    Args:
        tokens: The rows of this rank, on the CPU.
        first_row: Index of this rank's first row in the whole batch.
        group: A process group with the backend `gloo`; None if this rank has all rows.
    """
    part = batch_digest(tokens.numpy(), first_row)
    if group is None:
        return part
    distributed: Any = _torch.distributed
    own = _torch.tensor([first_row, *to_halves(part)])
    found = [_torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, own, group=group)
    parts = {row: from_halves(halves) for row, *halves in map(_ints, found)}
    return sum_digests(parts.values())


def _ints(tensor: Any) -> list[int]:
    return tensor.tolist()


class RankSteps:
    """The columns of the steps to come, for one rank of a trainer, and their digests.

    It moves its `StepIterator` along, one step for each item, and writes in its log.

    Args:
        steps: The `StepIterator` of this rank, with `tokens` and `loss_mask`.
        num_workers: Processes that prefetch batches, as in PyTorch's `DataLoader`.

    Example:
        >>> from roxxel_curriculum import Curriculum, Phase
        >>> from roxxel_curriculum.steps import StepIterator
        >>> from roxxel_curriculum.testing import PositionReader
        >>> steps = StepIterator(Curriculum(PositionReader(999), [Phase(2, 2, 9)]))
        >>> ranks = RankSteps(steps)
        >>> next(iter(ranks))["labels"].shape, steps.step
        (torch.Size([2, 8]), 1)
    """

    def __init__(self, steps: StepIterator, num_workers: int = 0) -> None:
        self._steps, self._num_workers = steps, num_workers
        self._group: Any = None
        self._last: Any = None  # the last column of the newest step

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield `next_token_labels` of each step from the next one on."""
        loader = self._loader(self._steps.step, num_workers=self._num_workers)
        for columns in loader:
            self._last = columns.pop("last")
            self._steps.step += 1
            yield columns

    def first(self) -> dict[str, Any]:
        """Return the columns of the run's first step, and move nothing."""
        [columns] = self._loader(0, 1)
        del columns["last"]
        return columns

    def note(self, inputs: Any) -> None:
        """Record the digest of the newest step; all ranks call this method together.

        Args:
            inputs: The rows of this rank as its trainer received them, without the
                token that they only predict.
        """
        distributed: Any = _torch.distributed
        is_alone = not (distributed.is_available() and distributed.is_initialized())
        if self._group is None and not is_alone:
            self._group = distributed.new_group(backend="gloo")
        tokens = _torch.cat([inputs.cpu(), self._last], 1)
        first = self._steps.share.rows(self._steps.step - 1).start
        self._steps.note(digest=gather_digest(tokens, first, self._group))

    def _loader(self, *steps: int, num_workers: int = 0) -> Any:
        share = self._steps.share
        return step_loader(
            self._steps.sampler,
            *steps,
            rank=share.index,
            world_size=share.count,
            transform=_with_last,
            num_workers=num_workers,
        )


def _with_last(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {**next_token_labels(batch), "last": batch["tokens"][:, -1:]}
