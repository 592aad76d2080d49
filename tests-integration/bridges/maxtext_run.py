"""Trains a few steps with MaxText: `maxtext_run.py CORPUS SEEN KILL [KEY=VALUE...]`.

Each batch that MaxText gets is saved as `SEEN/STEP.npz`, and the log is in `SEEN/log`.
The program kills itself when it asks for the batch of step `KILL`; a negative number
never comes.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import blended
import maxtext
import numpy as np
from absl import app
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


def main() -> None:
    corpus, seen, kill, *settings = sys.argv[1:]
    curriculum = blended.curriculum_of(corpus)
    bridge.feed(curriculum, seed=blended.SEED, record=Path(seen) / "log")
    make: Any = interface.create_data_iterator

    def spied(config: Any, mesh: Any) -> tuple[Any, Any]:
        trained, evaluated = make(config, mesh)

        class Spied(type(trained)):
            def __next__(self) -> dict[str, Any]:
                step = self.local_iterator.steps.step
                if step == int(kill):
                    os.kill(os.getpid(), signal.SIGKILL)
                batch = super().__next__()
                arrays: dict[str, Any] = {n: np.asarray(x) for n, x in batch.items()}
                np.savez(Path(seen) / f"{step}.npz", **arrays)
                return batch

        trained.__class__ = Spied
        return trained, evaluated

    interface.create_data_iterator = spied
    [package] = maxtext.__path__
    base = Path(package) / "configs" / "base.yml"
    app.run(train.main, [sys.argv[0], str(base), *SMALL, *settings])


if __name__ == "__main__":
    main()
