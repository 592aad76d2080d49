"""Start torchtitan on a CPU, to try a config: parts of a CPU stand in for a GPU.

Call it as you call `torchtitan.train`, but by its path. Set
`--training.disable_cuda_graphs` and `--parallelism.spmd_backend=partial_dtensor` too.
Attention is PyTorch's own, because the compiled kernel has no backward pass on a CPU.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
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
    shape = q.shape[0], 1, q.shape[2], k.shape[2]
    mask = create_mask(block_mask.mask_mod, *shape, device="cpu")
    grouped, scale = options["enable_gqa"], options["scale"]
    made = scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped
    )
    return made, SimpleNamespace(lse=None)


def main() -> None:
    # What these modules import asks for the device.
    use_cpu()
    from torchtitan.models.common.attention import FlexAttention
    from torchtitan.train import main as train

    FlexAttention._compiled_flex_attn = attention
    train()


if __name__ == "__main__":
    main()
