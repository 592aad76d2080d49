"""Let torchtitan train the steps of a curriculum; needs `torchtitan`.

Your config function returns the config that `feed` makes of one of torchtitan's::

    def fed():
        return feed(llama3_debugmodel(), curriculum, seed=0, record="runs/titan")

torchtitan's checkpoints hold the state of the sampler, and any number of ranks goes on
from it. Tried with torchtitan 0.3.0.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

from roxxel_store.records import find_object

from roxxel_curriculum.run_log import RunLog
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.torch import gather_digest, next_token_labels, step_loader

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.curriculum import Curriculum

__all__ = ["StepLoader", "feed"]

try:
    _loading: Any = importlib.import_module("torchtitan.components.dataloader")
    _torch: Any = importlib.import_module("torch")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_curriculum.torchtitan needs torchtitan; install torchtitan",
        name="torchtitan",
    ) from error

_FIELDS = ("tokens", "positions", "loss_mask")


class StepLoader(_loading.BaseDataLoader):
    """The micro batches of a run for one rank, as torchtitan counts them.

    Args:
        steps: The steps of the run, with this rank's rows.
        parts: Micro batches that torchtitan takes for each update.
        num_workers: Processes that read batches ahead, as of PyTorch's `DataLoader`.

    Raises:
        ValueError: The rows of a rank in some phase are not a multiple of `parts`.

    Example:
        >>> loader = StepLoader(StepIterator(curriculum), 2)  # doctest: +SKIP
    """

    def __init__(self, steps: StepIterator, parts: int, num_workers: int = 0) -> None:
        for phase in steps.sampler.phases:
            rows = len(steps.share.rows(phase.start))
            if rows % parts:
                raise ValueError(
                    f"phase {phase.index} has batch_size={phase.batch_size}: {rows} "
                    f"rows a rank, which the {parts} micro batches of an update cannot "
                    "share evenly; raise training.local_batch_size, or use a multiple "
                    f"of {phase.batch_size // rows * parts}"
                )
        self.steps, self._parts, self._num_workers = steps, parts, num_workers
        self.last: Any = None  # the last column of the newest step

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield micro batches, with the label -100 for what is not learned.

        Raises:
            ValueError: The trainer asks for more steps than the run has.
        """
        steps, share = self.steps, self.steps.share
        loader = step_loader(
            steps.sampler,
            steps.step,
            rank=share.index,
            world_size=share.count,
            num_workers=self._num_workers,
        )
        for batch in loader:
            steps.step, self.last = steps.step + 1, batch["tokens"][:, -1:]
            named = next_token_labels(batch)
            names = ("inputs", "positions", "labels")
            parts = (named[name].chunk(self._parts) for name in names)
            for inputs, positions, labels in zip(*parts, strict=True):
                yield {"input": inputs, "positions": positions}, labels
        raise ValueError(
            f"the curriculum has {steps.step} steps, and torchtitan asks for more; set "
            f"training.steps to {steps.step}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler, as the text of its JSON."""
        return {"data": json.dumps(self.steps.state())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateMismatch: The state belongs to other data, another seed or past.
        """
        self.steps.restore(find_object(state_dict["data"]) or {})


@dataclass(kw_only=True, slots=True)
class _Made(_loading.BaseDataLoader.Config):
    make: Any = None

    def build(self, **arguments: Any) -> StepLoader:
        return self.make(**arguments)


def feed(
    config: Any,
    curriculum: Curriculum,
    seed: int = 0,
    *,
    record: str | os.PathLike[str] | None = None,
    num_workers: int = 0,
) -> Any:
    """Return a config of torchtitan's trainer that reads a curriculum.

    It sets `training.steps`, `training.seq_len` to the longest phase, by which
    torchtitan sizes its table of positions, and `training.global_batch_size` to the
    first phase, by which torchtitan counts micro batches. Batch size and length may
    change from phase to phase.

    Args:
        config: A `Trainer.Config` of torchtitan, which is changed.
        curriculum: What the run reads. You may edit the future of a run between two
            starts; a state of another past is refused.
        seed: Seed of the order.
        record: Folder in which rank 0 writes the log of the run; None for no log.
        num_workers: Processes that read batches ahead, as of PyTorch's `DataLoader`.

    Example:
        >>> config = feed(llama3_debugmodel(), curriculum)  # doctest: +SKIP
    """
    planned = curriculum.sampler(seed, fields=_FIELDS)
    longest = max(phase.seq_len for phase in planned.phases) - 1
    config.training.steps = planned.total_steps
    config.training.seq_len = longest
    config.training.global_batch_size = planned.phases[0].batch_size
    base = cast("Any", type(config))

    class StepTrainer(_StepTraining, base._owner):  # noqa: SLF001 - its trainer
        fed = _Fed(curriculum, seed, longest, record, num_workers)

        @dataclass(kw_only=True, slots=True)
        class Config(base):
            pass

    settings = {each.name: getattr(config, each.name) for each in fields(config)}
    return StepTrainer.Config(**settings)


class _Fed(NamedTuple):
    """The arguments of `feed`, and the columns of the longest phase."""

    curriculum: Curriculum
    seed: int
    longest: int
    record: str | os.PathLike[str] | None
    num_workers: int


_Object: Any = object


class _StepTraining(_Object):
    """What a trainer of torchtitan does beside its own work."""

    fed: ClassVar[_Fed]

    def __init__(self, config: Any) -> None:
        self._log: RunLog | None = None
        self._loss: dict[str, float] = {}
        trainer: Any = super()
        trainer.__init__(replace(config, dataloader=_Made(make=self._loader)))
        distributed = _torch.distributed
        is_alone = distributed.get_world_size() == 1
        self._group = None if is_alone else distributed.new_group(backend="gloo")
        self._log_metrics = self.metrics_processor.log
        self.metrics_processor.log = self._note_loss

    def _loader(
        self, *, dp_rank: int, dp_world_size: int, seq_len: int, **_: Any
    ) -> StepLoader:
        longest = self.fed.longest
        if seq_len < longest:
            raise ValueError(
                f"training.seq_len={seq_len}, but the longest phase has rows of "
                f"{longest + 1} tokens; set training.seq_len to {longest}"
            )
        steps = StepIterator(
            self.fed.curriculum, self.fed.seed, dp_rank, dp_world_size, fields=_FIELDS
        )
        parts = self.gradient_accumulation_steps
        parts *= self.num_pipeline_parallel_microbatches
        return StepLoader(steps, parts, self.fed.num_workers)

    def _note_loss(self, step: int, loss: float, *rest: Any, **more: Any) -> None:
        self._loss = {"loss": loss}
        self._log_metrics(step, loss, *rest, **more)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        trainer: Any = super()
        if self.fed.record is None:
            trainer.train_step(data_iterator)
            return
        steps, taken = self.dataloader.steps, list[Any]()
        if self._log is None and _torch.distributed.get_rank() == 0:
            self._log = RunLog(
                self.fed.record, steps.curriculum, steps.sampler, state=steps.state()
            )
        self._loss, step = {}, steps.step
        trainer.train_step(_noted(data_iterator, taken))
        tokens = _torch.cat([_torch.cat(taken), self.dataloader.last], 1)
        digest = gather_digest(tokens, steps.share.rows(step).start, self._group)
        if self._log is not None:
            self._log.record(step, digest=digest, **self._loss)

    def state_dict(self) -> dict[str, Any]:
        if self._log is not None:
            self._log.state()  # brings the rows onto the disk
        trainer: Any = super()
        return trainer.state_dict()

    def close(self) -> None:
        if self._log is not None:
            self._log.close(sys.exception())
        trainer: Any = super()
        trainer.close()


def _noted(micro_batches: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    for inputs, labels in micro_batches:
        taken.append(inputs["input"])
        yield inputs, labels
