"""Trains a few steps with Tunix; see `blended`. The options are settings of Tunix."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import blended
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from roxxel_loader.bridges import tunix as bridge
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig


class Model(nnx.Module):
    """Predicts a token from the one before."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(256, 16, rngs=rngs)
        self.out = nnx.Linear(16, 256, rngs=rngs)

    def __call__(self, tokens: Any, *_: Any) -> tuple[Any, None]:
        return self.out(self.embed(tokens)), None


def spy(trainer: Any, seen: str, kill: int) -> None:
    """Save what the trainer gets and the losses, and kill the program."""
    hooks, log = trainer.data_hooks, trainer._log_metrics
    load = hooks.load_next_train_batch

    def spied_load(of: Any) -> Any:
        step = of.iter_steps
        if step == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = load(of)
        if batch is not None:
            arrays = {"tokens": batch.input_tokens, "mask": batch.input_mask}
            np.savez(Path(seen) / f"{step}-0.npz", **arrays)
        return batch

    def spied_log(loss: Any, step: int, additional_metrics: Any) -> None:
        blended.add_loss(seen, step - 1, float(loss))
        log(loss=loss, step=step, additional_metrics=additional_metrics)

    hooks.load_next_train_batch = spied_load
    trainer._log_metrics = spied_log


def inputs(batch: Any) -> dict[str, Any]:
    tokens = batch.input_tokens
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return {
        "input_tokens": tokens,
        "input_mask": batch.input_mask,
        "positions": positions,
        "attention_mask": jnp.ones(tokens.shape),
    }


def main() -> None:
    corpus, run, seen, kill, *settings = sys.argv[1:]
    numbers = {name: int(value) for name, value in (x.split("=") for x in settings)}
    config = TrainingConfig(
        eval_every_n_steps=100,
        checkpoint_root_directory=str(Path(run).resolve() / "saved"),
        checkpointing_options=ocp.CheckpointManagerOptions(save_interval_steps=3),
        **numbers,
    )
    trainer = PeftTrainer(Model(), optax.adamw(1e-2), config)
    trainer = trainer.with_gen_model_input_fn(inputs)
    curriculum = blended.curriculum_of(corpus)
    bridge.feed(trainer, curriculum, blended.SEED, record=f"{run}/log")
    spy(trainer, seen, int(kill))
    trainer.train([])


if __name__ == "__main__":
    main()
