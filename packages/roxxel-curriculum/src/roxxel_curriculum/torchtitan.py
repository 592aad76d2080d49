"""Let torchtitan train the steps of a curriculum; needs `torchtitan`.

Your config function returns the config that `feed` makes of one of torchtitan's::

    def fed():
        return feed(llama3_debugmodel(), curriculum, seed=0, record="runs/titan")

torchtitan's checkpoints hold the state of the sampler, and any number of ranks goes on
from it. Tried with torchtitan 0.3.0.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from roxxel_store import modules_of
from roxxel_store.records import find_object

from roxxel_curriculum.share import check_length, check_parts, check_steps
from roxxel_curriculum.steps import StepIterator
from roxxel_curriculum.torch import RankSteps

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum.curriculum import Curriculum

__all__ = ["feed"]

_loading, _torch = modules_of(
    "roxxel_curriculum.torchtitan",
    "torchtitan",
    "torchtitan.components.dataloader",
    "torch",
)


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
    columns = ("tokens", "positions", "loss_mask")
    steps = partial(StepIterator, curriculum, seed, fields=columns)
    phases = steps().sampler.phases
    config.training.steps = phases[-1].stop
    config.training.seq_len = max(phase.seq_len for phase in phases) - 1
    config.training.global_batch_size = phases[0].batch_size
    base = cast("Any", type(config))

    # A config of torchtitan names its trainer nowhere else.
    class StepTrainer(_StepTraining, base._owner):  # noqa: SLF001
        steps_of, folder = staticmethod(steps), record
        workers = num_workers

        @dataclass(kw_only=True, slots=True)
        class Config(base):
            pass

    settings = {each.name: getattr(config, each.name) for each in fields(config)}
    return StepTrainer.Config(**settings)


class _StepLoader(_loading.BaseDataLoader):
    """The micro batches of a run for one rank, as torchtitan counts them."""

    def __init__(self, steps: StepIterator, parts: int, num_workers: int) -> None:
        self.steps, self._parts = steps, parts
        self.ranks = RankSteps(steps, num_workers)

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for columns in self.ranks:
            names = ("inputs", "positions", "labels")
            parts = (columns[name].chunk(self._parts) for name in names)
            for inputs, positions, labels in zip(*parts, strict=True):
                yield {"input": inputs, "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        return {"data": json.dumps(self.steps.state())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.steps.restore(find_object(state_dict["data"]) or {})


_Object: Any = object


class _StepTraining(_Object):
    """What the bridge adds to the work of torchtitan's trainer."""

    steps_of: ClassVar[Any]
    folder: ClassVar[Any]
    workers: ClassVar[int]

    def __init__(self, config: Any) -> None:
        # The config cannot hold the loader: torchtitan makes a command line of it.
        made = SimpleNamespace(build=self._loader, to_dict=dict)
        trainer: Any = super()
        trainer.__init__(replace(config, dataloader=made))
        # In a pipeline, the ranks of one stage know the loss; the first of them writes.
        dims = self.parallel_dims
        has_loss = self.pp_has_last_stage if dims.pp_enabled else True
        rank = _torch.distributed.get_rank() % (dims.world_size // dims.pp)
        saved_in = f"{config.dump_folder}/{config.checkpoint.folder}"
        steps, log = self.dataloader.steps, self.metrics_processor.log
        writes = rank == 0 and has_loss
        self._open_log = partial(
            steps.log_to, self.folder, checkpoints=saved_in, writes=writes
        )

        def log_noted(step: int, loss: float, *rest: Any, **more: Any) -> None:
            steps.note(loss=loss)
            log(step, loss, *rest, **more)

        self.metrics_processor.log = log_noted

    def _loader(self, *, dp_rank: int, dp_world_size: int, **_: Any) -> _StepLoader:
        steps = self.steps_of(dp_rank, dp_world_size)
        settings = self.config.training
        check_length(steps.sampler, "training.seq_len", settings.seq_len)
        check_steps(steps.sampler, "training.steps", settings.steps)
        parts = self.gradient_accumulation_steps
        parts *= self.num_pipeline_parallel_microbatches
        of_update = "micro batches of an update (raise training.local_batch_size)"
        check_parts(steps.sampler, parts * dp_world_size, of_update)
        return _StepLoader(steps, parts, self.workers)

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        trainer: Any = super()
        if self.folder is None:
            trainer.train_step(data_iterator)
            return
        self._open_log()
        taken = list[Any]()
        trainer.train_step(_noted(data_iterator, taken))
        self.dataloader.ranks.note(_torch.cat(taken))
        self.dataloader.steps.write()

    def close(self) -> None:
        self.dataloader.steps.close(sys.exception())
        trainer: Any = super()
        trainer.close()


def _noted(micro_batches: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    for inputs, labels in micro_batches:
        taken.append(inputs["input"])
        yield inputs, labels
