"""Trains a few steps with MaxText; see `blended`. The options are settings of MaxText.

What MaxText gets is saved before it reorders columns for a context axis.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import blended
import jax
import maxtext
import numpy as np
from absl import app
from jax.experimental.multihost_utils import process_allgather
from maxtext.input_pipeline import input_pipeline_interface as interface
from maxtext.trainers.pre_train import train
from roxxel_loader.bridges import maxtext as bridge

SMALL = [
    *("dataset_type=grain", "grain_train_files=unread", "vocab_size=256"),
    *("base_emb_dim=32", "base_mlp_dim=64", "base_num_decoder_layers=1"),
    *("base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=16"),
    *("attention=dot_product", "hardware=cpu", "dtype=float32"),
    *("skip_jax_distributed_system=True", "enable_goodput_recording=False"),
    *("enable_checkpointing=True", "async_checkpointing=False"),
    *("run_name=m", "checkpoint_period=2", "max_target_length=128", "steps=10"),
]


def spy(seen: str, kill: int) -> None:
    """Save what MaxText gets and the losses, and kill the program."""
    make: Any = interface.create_data_iterator
    is_first = jax.process_index() == 0

    def spied(config: Any, mesh: Any) -> tuple[Any, Any]:
        trained, evaluated = make(config, mesh)
        iterate: Any = train.training_loop_iteration

        def spied_loop(device: Any, variables: Any, *rest: Any) -> Any:
            metrics = iterate(device, variables, *rest)
            if is_first:
                loss = float(metrics["scalar"]["learning/loss"])
                blended.add_loss(seen, variables["step"], loss)
            return metrics

        class Spied(type(trained)):
            def __next__(self) -> dict[str, Any]:
                step = self.local_iterator.steps.step
                if step == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                batch = super().__next__()
                whole: Any = process_allgather(batch, tiled=True)
                if is_first:
                    np.savez(Path(seen) / f"{step}-0.npz", **whole)
                return batch

        trained.__class__ = Spied
        train.training_loop_iteration = spied_loop
        return trained, evaluated

    interface.create_data_iterator = spied


def main() -> None:
    corpus, run, seen, kill, *settings = sys.argv[1:]
    address, count, index = blended.place()
    if count > 1:
        jax.distributed.initialize(address, count, index)
    curriculum = blended.curriculum_of(corpus)
    bridge.feed(curriculum, seed=blended.SEED, record=f"{run}/log")
    spy(seen, int(kill))
    [package] = maxtext.__path__
    base = Path(package) / "configs" / "base.yml"
    settings = [*SMALL, f"base_output_directory={run}", *settings]
    app.run(train.main, [sys.argv[0], str(base), *settings])


if __name__ == "__main__":
    main()
