"""Let MaxText train the steps of a curriculum; needs the extra `grain`, and MaxText.

Start such a program in place of `maxtext.trainers.pre_train.train`::

    from absl import app
    from maxtext.trainers.pre_train import train
    from roxxel_loader.bridges import maxtext

    maxtext.feed(curriculum, seed=0)
    app.run(train.main)

MaxText writes the state of the sampler into its checkpoints, and any number of
processes goes on from it. Tried with MaxText 0.2.5.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from roxxel_curriculum.share import Share
from roxxel_store import missing_extra

try:
    from grain.experimental import ElasticIterator
except ModuleNotFoundError as error:
    raise missing_extra(
        "roxxel_loader.bridges.maxtext", "grain", "roxxel-loader", "grain"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from roxxel_curriculum import Curriculum, Sampler

__all__ = ["feed"]

_FIELDS = ("tokens", "positions", "segment_ids", "loss_mask")
_ENDINGS = {"": "tokens", "_position": "positions", "_segmentation": "segment_ids"}


def feed(
    curriculum: Curriculum, seed: int = 0, held_out: Curriculum | None = None
) -> None:
    """Replace the function that makes MaxText's iterators of batches.

    The iterators raise ValueError where MaxText would train on less than the plan says:
    on the first rows of a larger batch, or on fewer steps. Every process reads its own
    rows. The phases may differ in batch size and length.

    Args:
        curriculum: What the run reads. You may edit the future of a run between two
            starts; a state of another past is refused.
        seed: Seed of the order.
        held_out: What MaxText reads at each of its evaluations, from the beginning.

    Raises:
        ModuleNotFoundError: MaxText is not installed.

    Example:
        >>> feed(curriculum, seed=0, held_out=valid)  # doctest: +SKIP
    """
    interface: Any = importlib.import_module(
        "maxtext.input_pipeline.input_pipeline_interface"
    )
    loading: Any = importlib.import_module(
        "maxtext.input_pipeline.multihost_dataloading"
    )

    def create_data_iterator(config: Any, mesh: Any) -> tuple[Any, Any]:
        steps = _Steps(config, curriculum, seed)
        trained = loading.MultiHostDataLoadIterator(steps, mesh)
        if config.eval_interval <= 0:
            return trained, None
        if held_out is None:
            raise ValueError(
                f"eval_interval={config.eval_interval}, but there is nothing to "
                "evaluate on; give feed a held_out, or leave eval_interval at -1"
            )
        evaluated = _HeldOut(config, held_out)
        return trained, loading.MultiHostDataLoadIterator(evaluated, mesh)

    interface.create_data_iterator = create_data_iterator


def _named(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of rows of T + 1 tokens by MaxText's names, as T columns of int32.

    MaxText learns the targets whose segmentation is not 0, so a token outside the loss
    mask has the segmentation 0 as a target.
    """
    columns = {"inputs": slice(-1), "targets": slice(1, None)}
    found = {
        part + ending: np.ascontiguousarray(batch[field][:, chosen], np.int32)
        for part, chosen in columns.items()
        for ending, field in _ENDINGS.items()
    }
    found["targets_segmentation"] *= batch["loss_mask"][:, 1:] != 0
    return found


class _Steps(ElasticIterator):
    """The batches of a run; MaxText writes the state of this class once for all."""

    def __init__(self, config: Any, curriculum: Curriculum, seed: int) -> None:
        self._config, self._curriculum = config, curriculum
        self._use(curriculum.sampler(seed, fields=_FIELDS), 0)

    def _use(self, sampler: Sampler, step: int) -> None:
        _check(self._config, sampler)
        self._sampler, self._step = sampler, step
        self._share = _share_of(sampler)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> dict[str, Any]:
        if self._step == self._sampler.total_steps:
            raise StopIteration
        batch = self._share.batch(self._step)
        self._step += 1
        return _named(batch)

    def get_state(self) -> dict[str, Any]:
        return self._sampler.state(self._step)

    def set_state(self, state: dict[str, Any]) -> None:
        sampler = self._curriculum.sampler(
            self._sampler.seed, state=state, fields=_FIELDS
        )
        self._use(sampler, state["step"])

    def close(self) -> None:
        pass


class _HeldOut:
    """The batches of an evaluation, which begin anew at each `iter`."""

    def __init__(self, config: Any, curriculum: Curriculum) -> None:
        self._sampler = curriculum.sampler(0, fields=_FIELDS)
        _check_rows(self._sampler, config.global_batch_size_to_eval_on, "eval_")
        self._share = _share_of(self._sampler)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(_named, map(self._share.batch, range(self._sampler.total_steps)))


def _share_of(sampler: Sampler) -> Share:
    return Share(sampler, jax.process_index(), jax.process_count())


def _check(config: Any, sampler: Sampler) -> None:
    """Raise ValueError if MaxText would leave out rows or steps, or lose the step."""
    if config.dataset_type != "grain":
        raise ValueError(
            f"dataset_type={config.dataset_type}: MaxText would write no step into its "
            "checkpoints; set dataset_type=grain"
        )
    if config.expansion_factor_real_data > 1:
        raise ValueError(
            f"expansion_factor_real_data={config.expansion_factor_real_data}: every "
            "process reads its own rows; leave it at -1"
        )
    if config.enable_rampup_batch_size:
        raise ValueError(
            "enable_rampup_batch_size=True: MaxText would cut a step into several; "
            "leave it False, and let the phases of the curriculum raise batch_size"
        )
    _check_rows(sampler, config.global_batch_size_to_train_on, "")
    parts = config.gradient_accumulation_steps
    for phase in sampler.phases:
        if phase.batch_size % parts:
            raise ValueError(
                f"phase {phase.index} has batch_size={phase.batch_size}, which "
                f"gradient_accumulation_steps={parts} does not divide"
            )
        if phase.seq_len > config.max_target_length + 1:
            raise ValueError(
                f"phase {phase.index} has seq_len={phase.seq_len}; set "
                f"max_target_length={phase.seq_len - 1} or more, which is the length "
                "of MaxText's tables of positions"
            )
    if config.steps > sampler.total_steps:
        raise ValueError(
            f"steps={config.steps}, but the curriculum has {sampler.total_steps}, and "
            "MaxText saves no last step when its data end; set "
            f"steps={sampler.total_steps}"
        )


def _check_rows(sampler: Sampler, most: int, which: str) -> None:
    for phase in sampler.phases:
        if phase.batch_size > most:
            raise ValueError(
                f"phase {phase.index} has batch_size={phase.batch_size}, of which "
                f"MaxText would use only the first {most} rows; set "
                f"{which}per_device_batch_size so that its product with the devices "
                f"is {phase.batch_size} or more"
            )
