"""Trains a few steps with OLMo-core; see `blended`.

The option is the longest row that the train module expects, by default that of the run.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blended
import numpy as np
import torch
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.distributed.utils import get_rank, get_world_size
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import (
    Duration,
    TrainerConfig,
    prepare_training_environment,
    teardown_training_environment,
)
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import (
    TransformerDataParallelConfig,
    TransformerTrainModuleConfig,
)
from roxxel_curriculum.olmo import StepLoader, StepRecorder


@dataclass
class Spy(Callback):
    """Saves what the trainer gets and the losses, and kills the program."""

    seen: str = ""
    kill: int = -1

    def pre_step(self, batch: dict[str, Any]) -> None:
        step = self.step - 1
        if step == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        named: dict[str, Any] = {n: x.numpy() for n, x in batch.items()}
        np.savez(Path(self.seen) / f"{step}-{get_rank()}.npz", **named)

    def log_metrics(self, step: int, metrics: dict[str, float]) -> None:
        if "train/CE loss" in metrics and get_rank() == 0:
            blended.add_loss(self.seen, step - 1, metrics["train/CE loss"])


def main() -> None:
    corpus, run, seen, kill, *longest = sys.argv[1:]
    prepare_training_environment(backend="gloo", seed=1)
    of_ranks = TransformerDataParallelConfig(name=DataParallelType.ddp)
    model = TransformerConfig.llama_like(
        d_model=32, vocab_size=256, n_layers=1, n_heads=2
    ).build(init_device="cpu")
    module = TransformerTrainModuleConfig(
        rank_microbatch_size=256,
        max_sequence_length=int(longest[0]) if longest else 128,
        optim=AdamWConfig(lr=1e-3),
        dp_config=of_ranks if get_world_size() > 1 else None,
    ).build(model, device=torch.device("cpu"))
    loader = StepLoader(
        blended.curriculum_of(corpus),
        run,
        seed=blended.SEED,
        dp_rank=get_rank(module.dp_process_group),
        dp_world_size=get_world_size(module.dp_process_group),
    )
    trainer = (
        TrainerConfig(
            save_folder=run,
            save_overwrite=True,
            max_duration=Duration.steps(loader.total_batches),
            metrics_collect_interval=3,
            device="cpu",
        )
        .with_callback(
            "checkpointer", CheckpointerCallback(save_interval=2, save_async=False)
        )
        .with_callback("roxxel", StepRecorder(folder=f"{run}/log"))
        .with_callback("spy", Spy(seen=seen, kill=int(kill)))
        .build(module, loader)
    )
    trainer.fit()
    teardown_training_environment()


if __name__ == "__main__":
    main()
