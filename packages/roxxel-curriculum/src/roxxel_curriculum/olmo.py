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

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from roxxel_curriculum.run_log import StepLog
from roxxel_curriculum.share import check_length
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.torch import gather_digest, next_token_labels, step_loader

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.curriculum import Curriculum

__all__ = ["StepLoader", "StepRecorder"]

try:
    _loading: Any = importlib.import_module("olmo_core.data.data_loader")
    _torch: Any = importlib.import_module("torch")
    _callbacks: Any = importlib.import_module("olmo_core.train.callbacks")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_curriculum.olmo needs OLMo-core; install ai2-olmo-core",
        name="olmo_core",
    ) from error

_FIELDS = ("tokens", "loss_mask")


def _named(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch by OLMo-core's names, and apart from it the last column."""
    columns = next_token_labels(batch)
    return {
        "input_ids": columns["inputs"].contiguous(),
        "labels": columns["labels"].contiguous(),
        "last": batch["tokens"][:, -1:],
    }


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
        self.steps = StepIterator(
            curriculum, seed, dp_rank, dp_world_size, fields=_FIELDS
        )
        self.last: Any = None  # the last column of the newest batch
        self._num_workers, self._in_epoch = num_workers, 1
        _loading.DataLoaderBase.__init__(
            self,
            work_dir=work_dir,
            global_batch_size=self.global_batch_size,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
        )

    @property
    def epoch(self) -> int:
        """The epoch of OLMo-core; the whole run is one epoch."""
        return self._in_epoch

    @property
    def total_batches(self) -> int:
        """Number of steps of the run."""
        return self.steps.sampler.total_steps

    @property
    def global_batch_size(self) -> int:
        """Tokens of the first step over all ranks; OLMo-core shows this number."""
        rows, length = self.steps.sampler.shape(0)
        return rows * (length - 1)

    @global_batch_size.setter
    def global_batch_size(self, _: int) -> None:
        # OLMo-core's own setter would count the batches anew, and lose the step.
        raise ValueError(
            "the phases of the curriculum say how large each batch is; leave "
            "OLMo-core's batch size scheduler out"
        )

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        batches = self._loader(self.batches_processed, None, self._num_workers)
        for batch in batches:
            self.last = batch.pop("last")
            yield batch

    def _loader(self, start: int, stop: int | None, num_workers: int = 0) -> Any:
        return step_loader(
            self.steps.sampler,
            start,
            stop,
            rank=self.dp_rank,
            world_size=self.dp_world_size,
            transform=_named,
            num_workers=num_workers,
        )

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
        self._in_epoch = epoch or 1

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
        [batch] = self._loader(0, 1)
        del batch["last"]
        return batch

    def global_num_tokens_in_batch(self, batch: Mapping[str, Any]) -> int:
        """Return the number of tokens of a batch over all ranks."""
        return batch["input_ids"].numel() * self.dp_world_size


@dataclass
class StepRecorder(_callbacks.Callback):
    """Writes the log of a run, for `roxxel ls`, `report`, `show`, `where` and `audit`.

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

    def __post_init__(self) -> None:
        """Start without a log: `pre_train` opens it."""
        self._log: StepLog | None = None
        self._group: Any = None

    @property
    def _loader(self) -> StepLoader:
        return cast("StepLoader", self.trainer.data_loader)

    def pre_train(self) -> None:
        """Open the log at the step of the restored checkpoint.

        Raises:
            ValueError: The trainer skips steps, a phase is longer than it expects, or
                the log lacks the row of the step before.
        """
        trainer, loader = self.trainer, self._loader
        if trainer.steps_to_skip:
            raise ValueError(
                f"steps_to_skip={trainer.steps_to_skip}: the log would call these "
                "steps trained; leave them out, or train without StepRecorder"
            )
        longest = getattr(trainer.train_module, "max_sequence_length", None)
        if longest is not None:
            check_length(loader.steps.sampler, "max_sequence_length", longest)
        loader.steps.step = loader.batches_processed
        distributed, rank = _torch.distributed, 0
        if distributed.is_initialized():
            self._group = distributed.new_group(backend="gloo")
            rank = distributed.get_rank()
        saved_in = str(trainer.save_folder)
        self._log = StepLog(
            self.folder, loader.steps, checkpoints=saved_in, writes=rank == 0
        )
        self._log.begin()

    def pre_step(self, batch: Mapping[str, Any]) -> None:
        """Record the digest of what the trainer got."""
        loader, step = self._loader, self.step - 1
        tokens = _torch.cat([batch["input_ids"].cpu(), loader.last], 1)
        first = loader.steps.share.rows(step).start
        digest = gather_digest(tokens, first, self._group)
        cast("StepLog", self._log).note(step, digest=digest)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the rows up to a step; OLMo-core hands over several at once."""
        if self._log is not None and "train/CE loss" in metrics:
            self._log.note(step - 1, loss=metrics["train/CE loss"])
            self._log.write(step)

    def state_dict(self) -> dict[str, Any]:
        """Flush the rows to the disk, before a checkpoint holds the loader's state."""
        if self._log is not None:
            self._log.sync(self.step)
        return {}

    def on_error(self, exc: BaseException) -> None:
        """Close the log with the error. The step that failed has no row."""
        self._close(self.step - 1, exc)

    def close(self) -> None:
        """Close the log."""
        self._close(self.step)

    def _close(self, step: int, error: BaseException | None = None) -> None:
        if self._log is not None:
            self._log.close(step, error)
            self._log = None
