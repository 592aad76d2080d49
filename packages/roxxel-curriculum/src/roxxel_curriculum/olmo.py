"""Batches of a curriculum for the trainer of OLMo-core; needs `ai2-olmo-core`.

The loader takes the place of OLMo-core's own::

    loader = StepLoader(
        curriculum, work_dir, seed=0, dp_rank=dp_rank, dp_world_size=dp_world_size
    )
    trainer_config.max_duration = Duration.steps(loader.total_batches)
    trainer = trainer_config.build(train_module, loader)

OLMo-core's checkpoints hold the state of the sampler, and any number of ranks goes on
from it. The callback `StepRecorder` writes the log of the run. Tried with OLMo-core
3.0.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from roxxel_store import modules_of

from roxxel_curriculum.share import check_length
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.torch import RankSteps

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.curriculum import Curriculum

__all__ = ["StepLoader", "StepRecorder"]

_loading, _callbacks, _distributed = modules_of(
    "roxxel_curriculum.olmo",
    "ai2-olmo-core",
    "olmo_core.data.data_loader",
    "olmo_core.train.callbacks",
    "torch.distributed",
)


def _named(columns: Mapping[str, Any]) -> dict[str, Any]:
    inputs, labels = columns["inputs"].contiguous(), columns["labels"].contiguous()
    return {"input_ids": inputs, "labels": labels}


class StepLoader(_loading.DataLoaderBase):
    """The steps of a run, for the trainer of OLMo-core.

    Args:
        curriculum: What the run reads. You may edit the future of a run between two
            starts. The loader refuses a state with another past.
        work_dir: A local folder, as OLMo-core wants it; nothing is written there.
        seed: Seed of the order.
        dp_world_size: Number of data-parallel ranks. Each reads its own rows.
        dp_rank: Which rank this is, from 0.
        num_workers: Processes that prefetch batches, as in PyTorch's `DataLoader`.

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
        fields = ("tokens", "loss_mask")
        self.steps = StepIterator(
            curriculum, seed, dp_rank, dp_world_size, fields=fields
        )
        self.ranks = RankSteps(self.steps, num_workers)
        rows, length = self.steps.sampler.shape(0)
        _loading.DataLoaderBase.__init__(
            self,
            work_dir=work_dir,
            global_batch_size=rows * (length - 1),  # OLMo-core shows this number
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
        )
        self._epoch = 1  # of OLMo-core; the whole run is one epoch

    @property
    def total_batches(self) -> int:
        """Number of steps of the run."""
        return self.steps.sampler.total_steps

    @_loading.DataLoaderBase.global_batch_size.setter
    def global_batch_size(self, _: int) -> None:
        """Tokens of the first step over all ranks, as OLMo-core shows them.

        Raises:
            ValueError: Always. OLMo-core's own setter would count the batches anew, and
                lose the step.
        """
        raise ValueError(
            "the phases of the curriculum say how large each batch is; leave "
            "OLMo-core's batch size scheduler out"
        )

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        self.steps.step = self.batches_processed
        return map(_named, self.ranks)

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Begin an epoch of OLMo-core, which is the rest of the run.

        Raises:
            ValueError: The run is complete, so a second epoch would read its steps
                again.
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
        """Keep the count: a run has no second epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler, after the batches that were processed."""
        self.steps.step = self.batches_processed
        return {"data": self.steps.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue at the step of a state.

        Raises:
            StateMismatch: The state belongs to other data, another seed or another
                past.
        """
        self.steps.restore(state_dict["data"])
        self.batches_processed = self.steps.step

    def get_mock_batch(self) -> dict[str, Any]:
        """Return the rows of the first step, for a dry run that trains nothing."""
        return _named(self.ranks.first())

    def global_num_tokens_in_batch(self, batch: Mapping[str, Any]) -> int:
        """Return the number of tokens of a batch over all ranks."""
        return batch["input_ids"].numel() * self.dp_world_size


@dataclass
class StepRecorder(_callbacks.Callback):
    """Writes the log of a run, for `roxxel ls`, `report`, `show`, `where`, `verify`.

    Each row has the digest of what all ranks of the trainer got, and the loss.

    Args:
        folder: Folder of the log, the same at each start.

    Example:
        >>> recorder = StepRecorder(folder="runs/olmo")  # doctest: +SKIP
        >>> config = trainer_config.with_callback(  # doctest: +SKIP
        ...     "roxxel", recorder
        ... )
    """

    folder: str = ""

    def pre_train(self) -> None:
        """Open the log at the step of the restored checkpoint.

        Raises:
            ValueError: The trainer skips steps, a phase is longer than it expects, or
                the log lacks the row of the step before.
        """
        trainer: Any = self.trainer
        loader: StepLoader = trainer.data_loader
        if trainer.steps_to_skip:
            raise ValueError(
                f"steps_to_skip={trainer.steps_to_skip}: the log would call these "
                "steps trained; leave them out, or train without StepRecorder"
            )
        longest = getattr(trainer.train_module, "max_sequence_length", None)
        if longest is not None:
            check_length(loader.steps.sampler, "max_sequence_length", longest)
        is_alone = not _distributed.is_initialized()
        loader.steps.log_to(
            self.folder,
            checkpoints=str(trainer.save_folder),
            writes=is_alone or _distributed.get_rank() == 0,
        )

    def pre_step(self, batch: Mapping[str, Any]) -> None:
        """Record the digest of what the trainer got."""
        self.trainer.data_loader.ranks.note(batch["input_ids"])

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the rows up to a step; OLMo-core hands over several at once."""
        if "train/CE loss" in metrics:
            steps: StepIterator = self.trainer.data_loader.steps
            steps.note(step - 1, loss=metrics["train/CE loss"])
            steps.write(step)

    def on_error(self, exc: BaseException) -> None:
        """Close the log with the error. The step that failed has no row."""
        self.trainer.data_loader.steps.close(exc)

    def close(self) -> None:
        """Close the log."""
        self.trainer.data_loader.steps.close()
