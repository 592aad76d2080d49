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
from roxxel_curriculum.run_log import StepLog
from roxxel_curriculum.share import (
    NEXT_TOKEN_FIELDS,
    Share,
    check_length,
    check_parts,
    check_steps,
    next_token,
)
from roxxel_curriculum.steps import StepIterator
from roxxel_store import missing_extra, modules_of

try:
    from grain.experimental import ElasticIterator
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_loader.bridges.maxtext", "grain", "roxxel-loader", "grain"
    ) from error

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum import Curriculum, Sampler

__all__ = ["feed"]


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
            self.local_iterator.log.begin()
            batch = super().__next__()
            self.local_iterator.note_batch(batch)
            return batch

    def create_data_iterator(config: Any, mesh: Any) -> tuple[Any, Any]:
        steps = _Steps(config, StepIterator(curriculum, seed, *_place()), record, mesh)

        def training_loop_iteration(*arguments: Any) -> Any:
            metrics = iterate(*arguments)
            steps.note_loss(metrics["scalar"]["learning/loss"])
            return metrics

        training.training_loop_iteration = training_loop_iteration
        trained = Fed(steps, mesh)
        if config.eval_interval <= 0:
            return trained, None
        if held_out is None:
            raise ValueError(
                f"eval_interval={config.eval_interval}, but there is nothing to "
                "evaluate on; give feed a held_out, or leave eval_interval at -1"
            )
        evaluated = _HeldOut(config, held_out)
        return trained, loading.MultiHostDataLoadIterator(evaluated, mesh)

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


class _Steps(ElasticIterator):
    """The batches of a run; MaxText writes one state for all processes."""

    def __init__(
        self,
        config: Any,
        steps: StepIterator,
        record: str | os.PathLike[str] | None,
        mesh: Any,
    ) -> None:
        _check(config, steps.sampler)
        self._config, self.steps = config, steps
        saved_in, is_first = config.checkpoint_dir, jax.process_index() == 0
        self.log = StepLog(record, steps, checkpoints=saved_in, writes=is_first)
        self._digest: Any = None
        if record is not None:
            whole = NamedSharding(mesh, PartitionSpec())
            self._digest = jax.jit(_digest_of, out_shardings=whole)
            atexit.register(self._close)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> dict[str, Any]:
        return _named(next(self.steps))

    def note_batch(self, batch: Mapping[str, Any]) -> None:
        """Record a batch on the devices; all processes call this method together."""
        if self._digest is None:
            return
        step = self.steps.step - 1
        # MaxText itself has waited for the losses before the last step.
        self.log.write(step - 1)
        halves = self._digest(batch["inputs"], batch["targets"])
        self.log.note(step, digest=lambda: from_halves(np.asarray(halves)))

    def note_loss(self, loss: Any) -> None:
        """Record the loss of the newest step."""
        self.log.note(self.steps.step - 1, loss=loss)

    def get_state(self) -> dict[str, Any]:
        self.log.sync(self.steps.step)
        return self.steps.state()

    def set_state(self, state: dict[str, Any]) -> None:
        self.steps.restore(state)
        _check(self._config, self.steps.sampler)

    def close(self) -> None:
        pass

    def _close(self) -> None:
        # After an error, the newest step has not been trained.
        error: BaseException | None = getattr(sys, "last_value", None)
        self.log.close(self.steps.step - (error is not None), error)


def _digest_of(inputs: Any, targets: Any) -> Any:
    return device_digest(jax.numpy.concatenate([inputs, targets[:, -1:]], 1))


class _HeldOut:
    """The batches of an evaluation; each `iter` begins with the first."""

    def __init__(self, config: Any, curriculum: Curriculum) -> None:
        sampler = curriculum.sampler(0, fields=NEXT_TOKEN_FIELDS)
        _check_rows(sampler, config.global_batch_size_to_eval_on, "eval_")
        self._share = Share(sampler, *_place())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_named, map(self._share.batch, range(self._share.total_steps)))


def _check(config: Any, sampler: Sampler) -> None:
    """Raise ValueError if MaxText would leave out rows or steps, or lose the step."""
    for name, is_right, why in (
        (
            "dataset_type",
            config.dataset_type == "grain",
            "MaxText would write no step into its checkpoints; set dataset_type=grain",
        ),
        (
            "expansion_factor_real_data",
            config.expansion_factor_real_data <= 1,
            "every process reads its own rows; leave it at -1",
        ),
        (
            "enable_rampup_batch_size",
            not config.enable_rampup_batch_size,
            (
                "MaxText would cut a step into several; leave it False, and let the "
                "phases of the curriculum raise batch_size"
            ),
        ),
    ):
        if not is_right:
            raise ValueError(f"{name}={getattr(config, name)}: {why}")
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
                f"MaxText would use only the first {most} rows; set "
                f"{which}per_device_batch_size so that its product with the devices "
                f"is {phase.batch_size} or more"
            )
