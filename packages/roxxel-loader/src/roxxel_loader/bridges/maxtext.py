"""Let MaxText train the steps of a curriculum; needs the extra `grain`, and MaxText.

Start such a program in place of `maxtext.trainers.pre_train.train`::

    from absl import app
    from maxtext.trainers.pre_train import train
    from roxxel_loader.bridges import maxtext

    maxtext.feed(curriculum, seed=0, record="runs/first")
    app.run(train.main)

MaxText writes the state of the sampler into its checkpoints, and any number of
processes goes on from it. Tried with MaxText 0.2.5.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from roxxel_curriculum.digest import device_digest, from_halves
from roxxel_curriculum.share import check_length, check_parts, check_steps, next_token
from roxxel_curriculum.steps import StepIterator
from roxxel_store import modules_of

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum import Curriculum, Sampler

__all__ = ["feed"]

[_grain] = modules_of(
    "roxxel_loader.bridges.maxtext", '"roxxel-loader[grain]"', "grain.experimental"
)
_NEEDED = {
    "dataset_type": ("grain", "MaxText's checkpoints would not hold the step"),
    "enable_rampup_batch_size": (False, "MaxText would cut a step into several"),
}
"""Settings of MaxText, what they must be, and why."""


def feed(
    curriculum: Curriculum,
    seed: int = 0,
    held_out: Curriculum | None = None,
    *,
    record: str | os.PathLike[str] | None = None,
) -> None:
    """Replace the function that makes MaxText's iterators of batches.

    The iterators raise ValueError where MaxText would train on less than the plan says:
    on the first rows of a larger batch, or on fewer steps. Every process reads its own
    rows. The phases may differ in batch size and length.

    Args:
        curriculum: What the run reads. You may edit the future of a run between two
            starts. The loader refuses a state with another past.
        seed: Seed of the order.
        held_out: Batches that MaxText reads, from the first, at each evaluation.
        record: Folder in which process 0 writes the log of the run: the digest of what
            the devices hold, and the loss, except for the step before a checkpoint.
            None for no log.

    Raises:
        ModuleNotFoundError: MaxText is not installed.

    Example:
        >>> feed(curriculum, seed=0, held_out=valid)  # doctest: +SKIP
    """
    interface, loading, training = modules_of(
        "roxxel_loader.bridges.maxtext",
        "maxtext",
        "maxtext.input_pipeline.input_pipeline_interface",
        "maxtext.input_pipeline.multihost_dataloading",
        "maxtext.trainers.pre_train.train",
    )
    iterate: Any = training.training_loop_iteration

    class Fed(loading.MultiHostDataLoadIterator):
        def __next__(self) -> dict[str, Any]:
            batch = super().__next__()
            self.local_iterator.note(batch)
            return batch

    def create_data_iterator(config: Any, mesh: Any) -> tuple[Any, Any]:
        steps = StepIterator(curriculum, seed, *_place())
        _check(config, steps.sampler)

        def training_loop_iteration(*arguments: Any) -> Any:
            # The log is opened and written here, not in the iterator, because MaxText
            # takes an error of its iterator for the end of the data.
            is_first = jax.process_index() == 0
            steps.log_to(record, checkpoints=config.checkpoint_dir, writes=is_first)
            # The newest step may still run, and its loss would make MaxText wait. For
            # the losses before it MaxText has waited itself.
            steps.write(steps.step - 1)
            metrics = iterate(*arguments)
            steps.note(loss=metrics["scalar"]["learning/loss"])
            return metrics

        training.training_loop_iteration = training_loop_iteration
        # After an error, the newest step has not been trained.
        atexit.register(lambda: steps.close(getattr(sys, "last_value", None)))
        # Digests are only for the log.
        trained = Fed(_Steps(steps, None if record is None else mesh), mesh)
        if config.eval_interval <= 0:
            return trained, None
        if held_out is None:
            raise ValueError(
                "eval_interval needs data; give feed a held_out, or set -1"
            )
        evaluated = StepIterator(held_out, 0, *_place())
        _check_rows(evaluated.sampler, config.global_batch_size_to_eval_on, "eval_")
        return trained, loading.MultiHostDataLoadIterator(_HeldOut(evaluated), mesh)

    # MaxText has no names for data sets of others, and no callbacks.
    interface.create_data_iterator = create_data_iterator


def _place() -> tuple[int, int]:
    return jax.process_index(), jax.process_count()


def _named(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of T + 1 tokens as MaxText's arrays by name: int32, T columns.

    MaxText trains on targets whose segmentation is not 0, so a target outside the loss
    mask gets the segmentation 0.
    """
    columns = next_token(batch)
    segments, positions = columns["segment_ids"], columns["positions"]
    found: dict[str, Any] = {}
    for part in ("inputs", "targets"):
        found[part], found[f"{part}_position"] = columns[part], positions
        found[f"{part}_segmentation"] = segments
    found["targets_segmentation"] = np.where(columns["weights"] == 0, 0, segments)
    return {n: np.ascontiguousarray(each, np.int32) for n, each in found.items()}


class _Steps(_grain.ElasticIterator):
    """The batches of a run; MaxText writes one state for all processes.

    With a mesh it notes the digests of what the devices hold.
    """

    def __init__(self, steps: StepIterator, mesh: Any) -> None:
        self.steps, self._digest = steps, None
        if mesh is not None:
            whole = NamedSharding(mesh, PartitionSpec())
            self._digest = jax.jit(_digest_of, out_shardings=whole)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> dict[str, Any]:
        return _named(next(self.steps))

    def note(self, batch: Mapping[str, Any]) -> None:
        """Note the digest of a batch; all processes call this method together."""
        if self._digest is not None:
            halves = self._digest(batch["inputs"], batch["targets"])
            self.steps.note(digest=lambda: from_halves(np.asarray(halves)))

    def get_state(self) -> dict[str, Any]:
        return self.steps.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.steps.restore(state)

    def close(self) -> None:
        pass


def _digest_of(inputs: Any, targets: Any) -> Any:
    return device_digest(jax.numpy.concatenate([inputs, targets[:, -1:]], 1))


class _HeldOut:
    """Batches that are not trained; each evaluation begins with the first."""

    def __init__(self, steps: StepIterator) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._steps.step = 0
        return map(_named, self._steps)


def _check(config: Any, sampler: Sampler) -> None:
    """Raise ValueError if MaxText would leave out rows or steps, or lose the step."""
    for name, (needed, why) in _NEEDED.items():
        if (found := getattr(config, name)) != needed:
            raise ValueError(f"{name}={found}: {why}; set {name}={needed}")
    _check_rows(sampler, config.global_batch_size_to_train_on, "")
    check_length(sampler, "max_target_length", config.max_target_length)
    of_update = "parts of an update (gradient_accumulation_steps)"
    check_parts(sampler, config.gradient_accumulation_steps, of_update)
    check_steps(sampler, "steps", config.steps)  # MaxText would save no last step


def _check_rows(sampler: Sampler, most: int, which: str) -> None:
    for phase in sampler.phases:
        if phase.batch_size > most:
            raise ValueError(
                f"phase {phase.index} has batch_size={phase.batch_size}, of which "
                f"MaxText would use only the first {most} rows; raise "
                f"{which}per_device_batch_size, which MaxText multiplies by the devices"
            )
