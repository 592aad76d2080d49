"""Trains a few steps with torchtitan; see `blended`.

torchtitan wants a GPU, so parts of a CPU stand in for what torchtitan asks of one.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blended
import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch.distributed.fsdp import FSDPModule
from torch.nn.attention.flex_attention import create_mask
from torch.nn.functional import scaled_dot_product_attention
from torchtitan.tools import utils


class Cpu(SimpleNamespace):
    """`torch.cpu`, with what torchtitan asks of a GPU beside it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


def use_cpu() -> None:
    utils.device_type = "cpu"
    utils.device_module = Cpu(
        get_device_name=lambda *_: "CPU",
        get_device_properties=lambda *_: SimpleNamespace(total_memory=1 << 30),
        reset_peak_memory_stats=lambda *_: None,
        empty_cache=lambda: None,
        memory_stats=lambda *_: {},
        current_device=lambda: 0,
        set_device=lambda *_: None,
    )
    barrier: Any = torch.distributed.barrier
    torch.distributed.barrier = lambda *_, **__: barrier()
    torch.distributed.set_timeout = lambda *_: None
    set_factor: Any = FSDPModule.set_gradient_divide_factor

    def divide_after_sum(self: Any, factor: float) -> None:
        # gloo has no reduction that multiplies.
        self.set_force_sum_reduction_for_comms(True)
        set_factor(self, factor)

    FSDPModule.set_gradient_divide_factor = divide_after_sum


def attention(q: Any, k: Any, v: Any, *, block_mask: Any, **options: Any) -> Any:
    """Attend without the compiled kernel, which has no backward pass on a CPU."""
    shape = q.shape[0], 1, q.shape[2], k.shape[2]
    mask = create_mask(block_mask.mask_mod, *shape, device="cpu")
    grouped, scale = options["enable_gqa"], options["scale"]
    made = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped
    )
    return made, SimpleNamespace(lse=None)


use_cpu()

from roxxel_curriculum.torchtitan import feed  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.models.common.attention import FlexAttention  # noqa: E402
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402
from torchtitan.train import main  # noqa: E402
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
    FlexAttention._compiled_flex_attn = attention
    spy()
    assets = Path(RUN) / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    Tokenizer(models.BPE()).save(str(assets / "tokenizer.json"))
    sys.argv[1:] = ["--module=titan", "--config=fed", f"--dump-folder={RUN}"]
    sys.argv += [f"--hf-assets-path={assets}", *OPTIONS]
    main()
