"""Let levanter train the steps of a curriculum; needs `marin-levanter`.

Give levanter's main function the config that `feed` makes of yours, and start the same
program again for each further length of the curriculum::

    from levanter.main import train_lm
    from roxxel_loader.bridges import levanter

    train_lm.main(levanter.feed(config, curriculum, seed=0, record="runs/first"))

levanter's checkpoints hold only the number of steps. So each start reads the log in
`record`, which proves on which data those steps were trained. Tried with marin-levanter
0.2.227.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import groupby, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from roxxel_curriculum.digest import batch_digest, from_halves, sum_digests, to_halves
from roxxel_curriculum.run_log import recorded_state
from roxxel_curriculum.share import check_length, step_of_row
from roxxel_curriculum.steps import StepIterator
from roxxel_store import modules_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from roxxel_curriculum import Curriculum, Sampler

__all__ = ["feed"]

_checkpoint, _dataset, _examples, _schedule, _text, _tracker = modules_of(
    "roxxel_loader.bridges.levanter",
    "marin-levanter",
    "levanter.checkpoint",
    "levanter.data.dataset",
    "levanter.data.text.examples",
    "levanter.schedule",
    "levanter.data.text.datasets",
    "levanter.tracker.tracker",
)
_FIELDS = ("tokens", "segment_ids", "loss_mask")


def feed(
    config: Any,
    curriculum: Curriculum,
    seed: int = 0,
    *,
    record: str | os.PathLike[str],
) -> Any:
    """Return a `TrainLmConfig` that reads a curriculum, from levanter's checkpoint on.

    In one launch, levanter trains one sequence length. This function finds levanter's
    newest checkpoint and sets `train_seq_len` to the length of its step. The launch
    ends where the length changes, and levanter saves there. A row of T tokens has T - 1
    targets, so a phase of length T needs `max_seq_len` T. Batch sizes may change within
    a launch.

    Args:
        config: Your `TrainLmConfig`. Its `data` keeps tokenizer and validation sets.
        curriculum: What the run reads. You may edit the future of a run between two
            starts.
        seed: Seed of the order.
        record: Folder in which process 0 writes the log of the run. At a resume, all
            processes read there on which data the checkpoint was trained.

    Raises:
        ValueError: `trainer.id` is missing, the trainer begins with another run's
            state, the model has no positions for the longest phase, or the log lacks
            the step of the checkpoint.
        StateMismatch: The log belongs to other data, another seed or another past.

    Example:
        >>> train_lm.main(feed(config, curriculum, record="r"))  # doctest: +SKIP
    """
    trainer = config.trainer
    if trainer.id is None or trainer.initialize_from:
        raise ValueError(
            "a run goes on from the newest checkpoint of its trainer.id, so set "
            "trainer.id, and leave trainer.initialize_from out"
        )
    steps = StepIterator(curriculum, seed, fields=_FIELDS)
    paths = trainer.checkpoint_search_paths(trainer.id)
    found = _checkpoint.discover_checkpoint_candidates(*paths)
    if found and trainer.load_checkpoint is not False:
        steps.restore(recorded_state(record, found[-1].step + 1))  # its last step
    sampler, phases = steps.sampler, steps.sampler.phases
    check_length(sampler, "max_seq_len", config.model.max_seq_len, over=0)
    rest = [phase for phase in phases if phase.stop > steps.step] or phases[-1:]
    length = rest[0].seq_len
    *_, last = takewhile(lambda phase: phase.seq_len == length, rest)
    rows = _Rows(sampler, length, last.stop)
    saved_in = trainer.checkpointer.expanded_path(trainer.id)
    recorder = _Recorder(steps, rows, record, saved_in)
    trackers = trainer.tracker
    trackers = trackers if isinstance(trackers, tuple) else (trackers,)
    base: Any = type(config.data)

    class Data(base):
        def train_set(self, Pos: Any, batch_schedule: Any, *, key: Any) -> Any:  # noqa: N803
            # Not in a mixture of levanter's, which would permute the rows of steps.
            del batch_schedule, key
            return _text.NamedLmDataset(rows, Pos)

    data = {each.name: getattr(config.data, each.name) for each in fields(config.data)}
    sizes = [_schedule.ScheduleStep(each.start, each.batch_size) for each in phases]
    total, all_trackers = sampler.total_steps, (*trackers, recorder)
    trainer = replace(
        trainer, train_batch_size=sizes, num_train_steps=total, tracker=all_trackers
    )
    return replace(config, data=Data(**data), train_seq_len=length, trainer=trainer)


class _Rows(_dataset.AsyncDataset):
    """The rows of a run, counted from its first, up to the end of a launch.

    It notes the digests of the rows it hands out, by step and row.
    """

    def __init__(self, sampler: Sampler, length: int, stop: int) -> None:
        self._sampler, self._length, self._stop = sampler, length, stop
        self._digests: dict[int, dict[int, int]] = {}

    def is_finite(self) -> bool:
        return True

    async def async_len(self) -> int:
        phases = [each for each in self._sampler.phases if each.start < self._stop]
        return sum(phase.steps * phase.batch_size for phase in phases)

    async def get_batch(self, indices: Sequence[int]) -> Sequence[Any]:
        made = list[Any]()
        places = [step_of_row(self._sampler, index) for index in indices]
        for step, of_step in groupby(places, itemgetter(0)):
            made += self._read(step, [row for _, row in of_step])
        return made

    def _read(self, step: int, rows: list[int]) -> list[Any]:
        if (step, rows) == (0, [0]) and self._sampler.shape(0)[1] != self._length:
            # levanter looks at the first row of the run for the shape of a launch.
            found = dict.fromkeys(_FIELDS, np.zeros((1, self._length), np.int32))
        else:
            found = self._sampler.rows(step, rows)
            digests = self._digests.setdefault(step, {})
            for row, tokens in zip(rows, found["tokens"], strict=True):
                digests[row] = batch_digest(tokens[None], first_row=row)
        return [*map(_example, *(found[field] for field in _FIELDS))]

    def digest(self, step: int) -> int:
        """Return the digest of a step; all processes call this method together."""
        halves = np.zeros((self._sampler.shape(step)[0], 2), np.uint32)
        for row, digest in self._digests.pop(step, {}).items():
            halves[row] = to_halves(digest)
        # Processes that hold the same row have the same digest of it, the others 0.
        whole = np.asarray(process_allgather(halves)).max(axis=0)
        return sum_digests(map(from_halves, whole))


@jax.jit
def _example(tokens: Any, segment_ids: Any, mask: Any) -> Any:
    """Return a row in levanter's form: weights before their targets, padding -1."""
    return _examples.GrugLmExample.causal(
        tokens, loss_weight=jnp.roll(mask, -1), segment_ids=segment_ids - 1
    )


@_tracker.TrackerConfig.register_subclass("roxxel")
@dataclass(init=False)  # without fields: levanter writes those down
class _Recorder(_tracker.TrackerConfig, _tracker.NoopTracker):
    name = "roxxel"

    def __init__(
        self, steps: StepIterator, rows: _Rows, folder: Any, saved_in: str
    ) -> None:
        self._steps, self._rows = steps, rows
        self._place = folder, saved_in

    def init(self, run_id: str | None) -> Any:
        del run_id
        folder, saved_in = self._place
        is_first = jax.process_index() == 0
        self._steps.log_to(folder, checkpoints=saved_in, writes=is_first)
        return self

    def log(self, metrics: Mapping[str, Any], *, step: Any, commit: Any = None) -> None:
        del commit
        # levanter calls its hooks twice for the last step.
        if "train/loss" not in metrics or step < self._steps.step:
            return
        self._steps.step = step + 1
        digest = self._rows.digest(step)
        try:
            self._steps.note(digest=digest, loss=metrics["train/loss"])
            self._steps.write()
        except (OSError, ValueError) as error:
            # levanter swallows the exceptions of trackers, and a log with a hole could
            # not resume its run.
            raise SystemExit(f"step {step} cannot be recorded: {error}") from error

    def finish(self) -> None:
        self._steps.close()
