"""Batches of a curriculum for the trainer of OLMo-core; needs `ai2-olmo-core`.

The loader takes the place of OLMo-core's own::

    loader = StepLoader(
        curriculum, work_dir, seed=0, dp_rank=dp_rank, dp_world_size=dp_world_size
    )
    trainer_config.max_duration = Duration.steps(loader.total_batches)
    trainer = trainer_config.build(train_module, loader)

OLMo-core's checkpoints hold the state of the sampler, and any number of ranks goes on
from it. Tried with OLMo-core 3.0.0.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from roxxel_curriculum.torch import step_loader

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.curriculum import Curriculum
    from roxxel_curriculum.sampler import Sampler

__all__ = ["StepLoader"]

try:
    _loading: Any = importlib.import_module("olmo_core.data.data_loader")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_curriculum.olmo needs OLMo-core; install ai2-olmo-core",
        name="olmo_core",
    ) from error

_FIELDS = ("tokens", "loss_mask")
_NOT_LEARNED = -100


def _next_token(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of rows of T + 1 tokens by OLMo-core's names, as T columns.

    OLMo-core does not learn the label -100, which a token outside the loss mask gets.
    """
    tokens, mask = batch["tokens"], batch["loss_mask"]
    labels = tokens.masked_fill(mask == 0, _NOT_LEARNED)
    return {
        "input_ids": tokens[:, :-1].contiguous(),
        "labels": labels[:, 1:].contiguous(),
    }


class StepLoader(_loading.DataLoaderBase):
    """The steps of a run, for the trainer of OLMo-core.

    Args:
        curriculum: What the run reads. You may edit the future of a run between two
            starts; a state of another past is refused.
        work_dir: A local folder, as OLMo-core wants it; nothing is written there.
        seed: Seed of the order.
        dp_world_size: Number of data-parallel ranks. Each reads its own rows.
        dp_rank: Which of them this is, from 0.
        num_workers: Processes that read batches ahead, as of PyTorch's `DataLoader`.

    Raises:
        CurriculumError: A phase has a batch size that `dp_world_size` does not divide.

    Example:
        >>> loader = StepLoader(curriculum, "work", seed=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        curriculum: Curriculum,
        work_dir: str | os.PathLike[str],
        *,
        seed: int = 0,
        dp_world_size: int = 1,
        dp_rank: int = 0,
        num_workers: int = 0,
    ) -> None:
        self._curriculum, self._num_workers = curriculum, num_workers
        self.sampler: Sampler = curriculum.sampler(seed, fields=_FIELDS)
        rows, length = self.sampler.shape(0)
        _loading.DataLoaderBase.__init__(
            self,
            work_dir=work_dir,
            global_batch_size=rows * (length - 1),
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
        )

    @property
    def total_batches(self) -> int:
        """Number of steps of the run."""
        return self.sampler.total_steps

    @property
    def global_batch_size(self) -> int:
        """Tokens of the first step over all ranks, which OLMo-core shows."""
        return self._global_batch_size

    @global_batch_size.setter
    def global_batch_size(self, _: int) -> None:
        # OLMo-core's own setter would count the batches anew, and lose the step.
        raise ValueError(
            "the phases of the curriculum say how large each batch is; leave "
            "OLMo-core's batch size scheduler out"
        )

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        return iter(
            step_loader(
                self.sampler,
                self.batches_processed,
                rank=self.dp_rank,
                world_size=self.dp_world_size,
                transform=_next_token,
                num_workers=self._num_workers,
            )
        )

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Begin an epoch of OLMo-core, which is the rest of the run.

        Raises:
            ValueError: The run is complete, and its steps would be read again.
        """
        if self.batches_processed >= self.total_batches:
            raise ValueError(
                f"all {self.total_batches} steps of the run are done, and the trainer "
                "asks for more; set max_duration to Duration.steps(loader."
                "total_batches), and let the phases of the curriculum say how often a "
                "source is read"
            )
        self._epoch = epoch or 1

    def reset(self) -> None:
        """Go on counting: a run has no second epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler, after the batches that were processed."""
        return {"data": self.sampler.state(self.batches_processed)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateMismatch: The state belongs to other data, another seed or past.
        """
        state = state_dict["data"]
        seed = self.sampler.seed
        self.sampler = self._curriculum.sampler(seed, state=state, fields=_FIELDS)
        self.batches_processed = state["step"]

    def get_mock_batch(self) -> dict[str, Any]:
        """Return the rows of the first step, for a dry run that trains nothing."""
        options = {"rank": self.dp_rank, "world_size": self.dp_world_size}
        loader = step_loader(self.sampler, 0, 1, transform=_next_token, **options)
        return next(iter(loader))

    def global_num_tokens_in_batch(self, batch: Mapping[str, Any]) -> int:
        """Return the number of tokens of a batch over all ranks."""
        return batch["input_ids"].numel() * self.dp_world_size
