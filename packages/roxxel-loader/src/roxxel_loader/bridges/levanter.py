"""Let levanter train the steps of a curriculum; needs `marin-levanter`.

Give levanter's main function the config that `feed` makes of yours, and start the same
program again for each further length of the curriculum::

    from levanter.main import train_lm
    from roxxel_loader.bridges import levanter

    train_lm.main(levanter.feed(config, curriculum, seed=0, record="runs/first"))

levanter's checkpoints hold the number of steps alone, so it is the log in `record` that
proves at each start which data they were. Tried with marin-levanter 0.2.227.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from roxxel_curriculum.digest import batch_digest, sum_digests
from roxxel_curriculum.run_log import RunLog, recorded_state
from roxxel_curriculum.share import step_of_row
from roxxel_curriculum.steps import StepIterator

try:
    _checkpoint: Any = importlib.import_module("levanter.checkpoint")
    _dataset: Any = importlib.import_module("levanter.data.dataset")
    _examples: Any = importlib.import_module("levanter.data.text.examples")
    _schedule: Any = importlib.import_module("levanter.schedule")
    _text: Any = importlib.import_module("levanter.data.text.datasets")
    _tracker: Any = importlib.import_module("levanter.tracker.tracker")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "roxxel_loader.bridges.levanter needs levanter; install marin-levanter",
        name="levanter",
    ) from error

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum import Curriculum

__all__ = ["feed"]

_FIELDS = ("tokens", "segment_ids", "loss_mask")


def feed(
    config: Any,
    curriculum: Curriculum,
    seed: int = 0,
    *,
    record: str | os.PathLike[str] | None = None,
) -> Any:
    """Return a `TrainLmConfig` that reads a curriculum, from levanter's checkpoint on.

    levanter has one length in a launch. This function finds levanter's newest
    checkpoint, and sets the length of its step as `train_seq_len`; the launch ends
    where the length changes, and levanter saves there. A row of T tokens has T - 1
    targets, so a phase of length T needs `max_seq_len` T. Batch sizes change within a
    launch.

    Args:
        config: Your `TrainLmConfig`. Its `data` keeps tokenizer and validation sets.
        curriculum: What the run reads. You may edit the future of a run between two
            starts.
        seed: Seed of the order.
        record: Folder in which the log of the run is written, by one process; None for
            no log, and no proof that a resumed run reads its own data.

    Raises:
        ValueError: `trainer.id` is missing, the model has no positions for the longest
            phase, or the log in `record` lacks the step of the checkpoint.
        StateMismatch: The log in `record` belongs to other data, another seed or past.

    Example:
        >>> train_lm.main(feed(config, curriculum))  # doctest: +SKIP
    """
    trainer = config.trainer
    if trainer.id is None:
        raise ValueError(
            "trainer.id is None, so every start would be a run of its own; set it"
        )
    steps = StepIterator(curriculum, seed, fields=_FIELDS)
    paths = trainer.checkpoint_search_paths(trainer.id)
    found = _checkpoint.discover_checkpoint_candidates(*paths)
    if found and trainer.load_checkpoint is not False:
        steps.step = found[-1].step + 1  # levanter names its last step
        if record is not None:
            steps.restore(recorded_state(record, steps.step))
    phases = steps.sampler.phases
    longest = max(phase.seq_len for phase in phases)
    if longest > config.model.max_seq_len:
        raise ValueError(
            f"a phase has seq_len={longest}, and the model has positions for "
            f"{config.model.max_seq_len}; set max_seq_len to {longest}"
        )
    last = min(steps.step, steps.sampler.total_steps - 1)
    length = steps.sampler.shape(last)[1]
    rest = [phase for phase in phases if phase.stop > last]
    stop = next((p.start for p in rest if p.seq_len != length), rest[-1].stop)
    rows = _Rows(steps, length, stop, {} if record else None)
    trackers = trainer.tracker
    trackers = trackers if isinstance(trackers, tuple) else (trackers,)
    if record is not None:
        trackers = (*trackers, _Record(record, rows))
    data = {each.name: getattr(config.data, each.name) for each in fields(config.data)}
    schedule = [
        _schedule.ScheduleStep(phase.start, phase.batch_size) for phase in phases
    ]
    return replace(
        config,
        data=_Data(**data, rows=rows),
        train_seq_len=length,
        trainer=replace(
            trainer,
            train_batch_size=schedule,
            num_train_steps=steps.sampler.total_steps,
            tracker=trackers,
        ),
    )


class _Rows(_dataset.AsyncDataset):
    """The rows of a run, counted from its first, up to the end of a launch.

    It notes the digests of the rows it hands out, by step and row.
    """

    def __init__(
        self,
        steps: StepIterator,
        length: int,
        stop: int,
        digests: dict[int, dict[int, int]] | None,
    ) -> None:
        self.steps, self.length, self.digests = steps, length, digests
        phases = steps.sampler.phases
        self._num_rows = sum(
            (min(phase.stop, stop) - phase.start) * phase.batch_size
            for phase in phases
            if phase.start < stop
        )

    def is_finite(self) -> bool:
        return True

    async def async_len(self) -> int:
        return self._num_rows

    async def get_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        sampler, made = self.steps.sampler, dict[int, Any]()
        by_step: dict[int, dict[int, int]] = {}
        for index in indices:
            step, row = step_of_row(sampler, index)
            by_step.setdefault(step, {})[row] = index
        for step, wanted in by_step.items():
            rows = self._read(step, [*wanted])
            for at, index in enumerate(wanted.values()):
                made[index] = _example(*(rows[field][at] for field in _FIELDS))
        return [made[index] for index in indices]

    def _read(self, step: int, rows: list[int]) -> Mapping[str, Any]:
        planned = self.steps.sampler.shape(step)[1]
        if planned == self.length:
            found = self.steps.sampler.rows(step, rows)
            if self.digests is not None:
                of_step = self.digests.setdefault(step, {})
                for row, tokens in zip(rows, found["tokens"], strict=True):
                    of_step[row] = batch_digest(tokens[None], first_row=row)
            return found
        if (step, rows) == (0, [0]):
            # levanter looks at the first row of the run for the shape of a launch.
            return dict.fromkeys(_FIELDS, np.zeros((1, self.length), np.int32))
        raise ValueError(
            f"step {step} has rows of {planned} tokens, and this launch {self.length}: "
            "levanter goes on from another checkpoint than its newest; leave out "
            "load_checkpoint_path and initialize_from"
        )


@jax.jit
def _example(tokens: Any, segment_ids: Any, mask: Any) -> Any:
    """Return a row as levanter takes it: weights before their targets, padding -1."""
    return _examples.GrugLmExample.causal(
        tokens, loss_weight=jnp.roll(mask, -1), segment_ids=segment_ids - 1
    )


@dataclass(frozen=True)
class _Data(_text.LmDataConfig):
    rows: Any = None

    def train_set(self, Pos: Any, batch_schedule: Any, *, key: Any) -> Any:  # noqa: N803
        # Not in a mixture of levanter's, which would permute the rows of steps.
        del batch_schedule, key
        return _text.NamedLmDataset(self.rows, Pos)


@_tracker.TrackerConfig.register_subclass("roxxel")
@dataclass
class _Record(_tracker.TrackerConfig):
    folder: Any
    rows: Any

    def init(self, run_id: str | None) -> Any:
        del run_id
        if jax.process_count() > 1:
            raise ValueError(
                f"{jax.process_count()} processes hold the rows of a step, and the log "
                "is written from one that holds all; leave record out"
            )
        return _Recorder(self.rows, self.folder)


class _Recorder(_tracker.NoopTracker):
    name = "roxxel"

    def __init__(self, rows: _Rows, folder: Any) -> None:
        self._rows, steps = rows, rows.steps
        self._log = RunLog(folder, steps.curriculum, steps.sampler, state=steps.state())

    def log(
        self, metrics: Mapping[str, Any], *, step: int | None, commit: Any = None
    ) -> None:
        del commit
        # levanter calls its hooks twice for the last step.
        if "train/loss" in metrics and step is not None and step >= self._log.step:
            parts = (self._rows.digests or {}).pop(step).values()
            loss = float(metrics["train/loss"])
            self._log.record(step, digest=sum_digests(parts), loss=loss)

    def finish(self) -> None:
        self._log.close()
