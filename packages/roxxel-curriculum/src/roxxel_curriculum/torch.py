"""Batches of a curriculum for a training loop in PyTorch. Needs `torch`, and no JAX.

An item is a step, so the loader neither shuffles, nor groups, nor divides items::

    for step, batch in enumerate(step_loader(sampler, start, num_workers=2), start):
        loss = train_step(batch)

To resume, pass the number of steps done as `start`. Worker processes, prefetching and
pinned memory are those of `torch.utils.data.DataLoader`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from roxxel_curriculum.digest import batch_digest, sum_digests
from roxxel_curriculum.share import Share, next_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from roxxel_curriculum.sampler import Sampler

__all__ = ["Steps", "gather_digest", "next_token_labels", "step_loader"]

_NOT_LEARNED = -100
"""The label that PyTorch's losses ignore."""

try:
    _torch: Any = importlib.import_module("torch")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_curriculum.torch needs PyTorch; install torch for your devices",
        name="torch",
    ) from error


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
    own = _torch.tensor([first_row, part & 0xFFFFFFFF, part >> 32])
    found = [_torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, own, group=group)
    halves = {row: low | high << 32 for row, low, high in map(_ints, found)}
    return sum_digests(halves.values())


def _ints(tensor: Any) -> list[int]:
    return tensor.tolist()
