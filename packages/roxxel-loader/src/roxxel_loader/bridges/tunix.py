"""Let Tunix train the steps of a curriculum; needs `google-tunix`.

Call `feed` when your trainer is made, and train without a dataset::

    trainer = PeftTrainer(model, optimizer, config)
    tunix.feed(trainer, curriculum, seed=0, record="runs/tuned")
    trainer.train([])

Tunix's checkpoints hold only the number of steps. So each start reads the log in
`record`, which proves on which data those steps were trained. Tried with google-tunix
0.1.7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from roxxel_curriculum.digest import batch_digest
from roxxel_curriculum.run_log import recorded_state
from roxxel_curriculum.share import check_steps
from roxxel_curriculum.steps import StepIterator
from roxxel_store import modules_of

if TYPE_CHECKING:
    import os

    from roxxel_curriculum import Curriculum

__all__ = ["feed"]

_hooks, _training = modules_of(
    "roxxel_loader.bridges.tunix",
    "google-tunix",
    "tunix.sft.hooks",
    "tunix.sft.peft_trainer",
)


def feed(
    trainer: Any,
    curriculum: Curriculum,
    seed: int = 0,
    *,
    record: str | os.PathLike[str],
) -> None:
    """Let a `PeftTrainer` read a curriculum, from its restored checkpoint on.

    Each update reads one step. Batch size and length may change from phase to phase.

    Args:
        trainer: The trainer, whose data hooks and training hooks become ours.
        curriculum: What the run reads. You may edit the future of a run between two
            starts.
        seed: Seed of the order.
        record: Folder of the log of the run, the same at each start.

    Raises:
        ValueError: An update would read several batches, `max_steps` is beyond the
            curriculum, the log lacks the step of the checkpoint, there are several
            processes, or the trainer has hooks.
        StateMismatch: The log belongs to other data, another seed or another past.

    Example:
        >>> feed(trainer, curriculum, record="runs/tuned")  # doctest: +SKIP
    """
    config = trainer.config
    if (parts := config.gradient_accumulation_steps or 1) > 1:
        raise ValueError(
            f"gradient_accumulation_steps={parts}: Tunix would take {parts} steps of "
            "the curriculum for one update; leave it out"
        )
    if jax.process_count() > 1 or trainer.training_hooks or trainer.data_hooks:
        raise ValueError(
            "Tunix is fed in one process, by hooks that `feed` sets: start one process "
            "for all devices, and call `feed` on a trainer without hooks"
        )
    steps = StepIterator(curriculum, seed, fields=("tokens", "loss_mask"))
    if trainer.train_steps:
        steps.restore(recorded_state(record, trainer.train_steps))
    stop = config.max_steps or steps.sampler.total_steps
    check_steps(steps.sampler, "max_steps", stop)
    steps.log_to(record, checkpoints=str(config.checkpoint_root_directory))
    hooks = _Hooks(steps, stop)
    # Tunix has no hook for its saves, and tells a loss one step late.
    manager = trainer.checkpoint_manager._checkpoint_manager  # noqa: SLF001
    if manager is not None:
        manager.save = hooks.synced(manager.save)
    trainer.with_data_hooks(hooks)
    trainer.with_training_hooks(hooks)


def _nothing(*_: Any) -> None:
    pass


class _Hooks(_hooks.DataHooks, _hooks.TrainingHooks):
    def __init__(self, steps: StepIterator, stop: int) -> None:
        self._steps, self._stop = steps, stop

    def load_next_train_batch(self, trainer: Any) -> Any:
        del trainer
        if self._steps.step >= self._stop:
            return None
        batch = next(self._steps)
        self._steps.note(digest=batch_digest(batch["tokens"]))
        return _training.TrainingInput(
            input_tokens=batch["tokens"], input_mask=batch["loss_mask"]
        )

    def on_train_step_end(self, trainer: Any, step: int, loss: Any) -> None:
        del trainer
        self._steps.note(step - 1, loss=loss)
        self._steps.write(step)
        if step == self._stop:
            self._steps.close()

    def synced(self, save: Any) -> Any:
        """Return Tunix's function that saves, with the rows on the disk before."""

        def synced(*what: Any, **more: Any) -> Any:
            self._steps.state()
            return save(*what, **more)

        return synced

    load_next_eval_batch = on_train_start = on_train_end = _nothing
    on_train_step_start = on_eval_step_start = on_eval_step_end = _nothing
