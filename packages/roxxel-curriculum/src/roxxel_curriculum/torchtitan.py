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

from roxxel_curriculum.run_log import StepLog
from roxxel_curriculum.share import check_length
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.torch import gather_digest, next_token_labels, step_loader

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.curriculum import Curriculum

__all__ = ["feed"]

try:
    _loading: Any = importlib.import_module("torchtitan.components.dataloader")
    _metrics: Any = importlib.import_module("torchtitan.components.metrics")
    _torch: Any = importlib.import_module("torch")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_curriculum.torchtitan needs torchtitan; install torchtitan",
        name="torchtitan",
    ) from error

_FIELDS = ("tokens", "positions", "loss_mask")


class _Given(NamedTuple):
    """The arguments of `feed`."""

    curriculum: Curriculum
    seed: int
    record: str | os.PathLike[str] | None
    num_workers: int


def feed(
    config: Any,
    curriculum: Curriculum,
    seed: int = 0,
    *,
    record: str | os.PathLike[str] | None = None,
    num_workers: int = 0,
) -> Any:
    """Return a config of torchtitan's trainer that reads a curriculum.

    It sets `training.steps`. It sets `training.seq_len` to the longest phase, because
    torchtitan sizes its table of positions by it, and `training.global_batch_size` to
    the first phase, because torchtitan counts micro batches by it. Batch size and
    length may change from phase to phase.

    Args:
        config: A `Trainer.Config` of torchtitan, which is changed.
        curriculum: What the run reads. You may edit the future of a run between two
            starts. The loader refuses a state with another past.
        seed: Seed of the order.
        record: Folder in which one rank writes the log of the run; None for no log.
        num_workers: Processes that prefetch batches, as in PyTorch's `DataLoader`.

    Example:
        >>> config = feed(llama3_debugmodel(), curriculum)  # doctest: +SKIP
    """
    phases = curriculum.sampler(seed, fields=_FIELDS).phases
    config.training.steps = phases[-1].stop
    config.training.seq_len = max(phase.seq_len for phase in phases) - 1
    config.training.global_batch_size = phases[0].batch_size
    base = cast("Any", type(config))

    # A config of torchtitan names its trainer nowhere else.
    class StepTrainer(_StepTraining, base._owner):  # noqa: SLF001
        given = _Given(curriculum, seed, record, num_workers)

        @dataclass(kw_only=True, slots=True)
        class Config(base):
            pass

    settings = {each.name: getattr(config, each.name) for each in fields(config)}
    return StepTrainer.Config(**settings)


class _StepLoader(_loading.BaseDataLoader):
    """The micro batches of a run for one rank, as torchtitan counts them."""

    def __init__(self, steps: StepIterator, parts: int, num_workers: int) -> None:
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
        return {"data": json.dumps(self.steps.state())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.steps.restore(find_object(state_dict["data"]) or {})


@dataclass(kw_only=True, slots=True)
class _Made(_loading.BaseDataLoader.Config):
    make: Any = None

    def build(self, **arguments: Any) -> _StepLoader:
        return self.make(**arguments)


class _Losses(_metrics.BaseLogger):
    """Records the losses that torchtitan logs; torchtitan counts steps from 1."""

    def __init__(self, log: StepLog) -> None:
        self._log = log

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        name = "loss_metrics/global_avg_loss"
        if name in metrics:  # else they are those of a validation
            self._log.note(step - 1, loss=metrics[name])


_Object: Any = object


class _StepTraining(_Object):
    """What the bridge adds to the work of torchtitan's trainer."""

    given: ClassVar[_Given]

    def __init__(self, config: Any) -> None:
        trainer: Any = super()
        trainer.__init__(replace(config, dataloader=_Made(make=self._loader)))
        distributed = _torch.distributed
        is_alone = distributed.get_world_size() == 1
        self._group = None if is_alone else distributed.new_group(backend="gloo")
        # In a pipeline, the ranks of one stage know the loss; the first of them writes.
        dims, has_loss = self.parallel_dims, True
        if dims.pp_enabled:
            has_loss = self.pp_has_last_stage
        is_first = distributed.get_rank() % (dims.world_size // dims.pp) == 0
        self._log = StepLog(
            self.given.record,
            self.dataloader.steps,
            checkpoints=f"{config.dump_folder}/{config.checkpoint.folder}",
            writes=is_first and has_loss,
        )
        both = _metrics.LoggerContainer()
        both.add_logger(self.metrics_processor.logger)
        both.add_logger(_Losses(self._log))
        self.metrics_processor.logger = both

    def _loader(
        self, *, dp_rank: int, dp_world_size: int, seq_len: int, **_: Any
    ) -> _StepLoader:
        given = self.given
        steps = StepIterator(
            given.curriculum, given.seed, dp_rank, dp_world_size, fields=_FIELDS
        )
        check_length(steps.sampler, "training.seq_len", seq_len)
        parts = self.gradient_accumulation_steps
        parts *= self.num_pipeline_parallel_microbatches
        return _StepLoader(steps, parts, given.num_workers)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        trainer: Any = super()
        if self.given.record is None:
            trainer.train_step(data_iterator)
            return
        self._log.begin()
        taken, steps = list[Any](), self.dataloader.steps
        trainer.train_step(_noted(data_iterator, taken))
        step = steps.step - 1
        tokens = _torch.cat([_torch.cat(taken), self.dataloader.last], 1)
        first = steps.share.rows(step).start
        self._log.note(step, digest=gather_digest(tokens, first, self._group))
        self._log.write(step + 1)

    def state_dict(self) -> dict[str, Any]:
        self._log.sync(self.dataloader.steps.step)
        trainer: Any = super()
        return trainer.state_dict()

    def close(self) -> None:
        self._log.close(0, sys.exception())  # the rows of all steps are written
        trainer: Any = super()
        trainer.close()


def _noted(micro_batches: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    for inputs, labels in micro_batches:
        taken.append(inputs["input"])
        yield inputs, labels
