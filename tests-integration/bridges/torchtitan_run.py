"""Trains a few steps with torchtitan; see `blended`."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import blended
import numpy as np
import torch
import torchtitan_cpu
from tokenizers import Tokenizer, models

torchtitan_cpu.use_cpu()

from roxxel_curriculum.torchtitan import feed  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

CORPUS, RUN, SEEN, KILL, *OPTIONS = sys.argv[1:]


def fed() -> Any:
    config = llama3_debugmodel()
    config.model_spec.model.layers = config.model_spec.model.layers[:1]
    config.validator.enable = False
    config.training.disable_cuda_graphs = True
    config.checkpoint.enable, config.checkpoint.interval = True, 2
    config.checkpoint.keep_latest_k = 0
    config.debug.seed = 1
    config.metrics.log_freq = 1
    config.parallelism.spmd_backend = "partial_dtensor"
    return feed(
        config, blended.curriculum_of(CORPUS), blended.SEED, record=f"{RUN}/log"
    )


def spy() -> None:
    """Save what the model gets and the losses, and kill the program."""
    train_step, process = Trainer.train_step, Trainer.post_dataloading_process
    log = MetricsProcessor.log
    got: list[dict[str, Any]] = []

    def spied_step(self: Any, batches: Any) -> None:
        if self.step - 1 == int(KILL):
            os.kill(os.getpid(), signal.SIGKILL)
        got.clear()
        train_step(self, batches)
        names = got[0]
        whole: dict[str, Any] = {
            n: np.concatenate([part[n] for part in got]) for n in names
        }
        rank = torch.distributed.get_rank()
        np.savez(Path(SEEN) / f"{self.step - 1}-{rank}.npz", **whole)

    def spied_process(self: Any, named: dict[str, Any], labels: Any) -> Any:
        columns = {**named, "labels": labels}
        got.append({name: x.numpy() for name, x in columns.items()})
        return process(self, named, labels)

    def spied_log(self: Any, step: int, loss: float, *rest: Any, **more: Any) -> None:
        if torch.distributed.get_rank() == 0:
            blended.add_loss(SEEN, step - 1, loss)
        log(self, step, loss, *rest, **more)

    Trainer.train_step = spied_step
    Trainer.post_dataloading_process = spied_process
    MetricsProcessor.log = spied_log


if __name__ == "__main__":
    sys.modules["titan"] = sys.modules["__main__"]
    spy()
    assets = Path(RUN) / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    Tokenizer(models.BPE()).save(str(assets / "tokenizer.json"))
    sys.argv[1:] = ["--module=titan", "--config=fed", f"--dump-folder={RUN}"]
    sys.argv += [f"--hf-assets-path={assets}", *OPTIONS]
    torchtitan_cpu.main()
