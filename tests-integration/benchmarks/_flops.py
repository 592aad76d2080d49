"""Floating-point operations of a token, by the convention of the benchmark.

A token takes 6 operations for each parameter: 2 in the forward pass, 4 in the backward
pass (Kaplan et al., Scaling Laws for Neural Language Models, 2020). MFU is the rate of
these 6N operations, as a share of the dense bfloat16 peak. Attention scores are counted
separately. A token takes 12 x layers x width x context operations if every token
attends to all others, and half of this number for causal attention (Chowdhery et al.,
PaLM, 2022, appendix B).

N counts all parameters. The token table counts once: the logits are a product with this
table, and reading its rows costs no operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roxxel.models import LlamaConfig

PEAK_FLOPS_PER_S = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
"""Dense bfloat16 peaks from NVIDIA's data sheets, by the driver's name of the device.

The data sheets print 1979 TFLOP/s, which is the figure with sparsity.
"""


def flops_record(
    config: LlamaConfig,
    context: int,
    tokens_per_s: float,
    device_kind: str,
    measured_peak: float | None = None,
) -> dict[str, float | None]:
    """Return the fields of a record for operations and MFU.

    Args:
        config: Sizes of the decoder.
        context: Number of tokens that a sequence predicts.
        tokens_per_s: Tokens that one device trains on in a second.
        device_kind: `jax.Device.device_kind`.
        measured_peak: Rate of a large bfloat16 product on this device.

    Returns:
        Parameters, operations of a token, and `mfu` by several conventions; None if the
        peak is unknown. `share_of_product` is `mfu` with the measured peak in place of
        the data sheet's.
    """
    parameters = config.num_parameters
    heads = config.num_heads * config.channels
    attention = 12.0 * config.num_layers * heads * context
    by_convention = {
        "": 6.0 * parameters,
        "_with_full_attention": 6.0 * parameters + attention,
        "_with_causal_attention": 6.0 * parameters + attention / 2,
    }
    peak = PEAK_FLOPS_PER_S.get(device_kind)
    shares = {
        f"mfu{name}": None if peak is None else tokens_per_s * flops / peak
        for name, flops in by_convention.items()
    }
    rate = tokens_per_s * by_convention[""]
    return {
        "mfu_tokens_per_s": tokens_per_s,
        "parameters": parameters,
        "flops_per_token": by_convention[""],
        "attention_flops_per_token": attention,
        "peak_flops_per_s": peak,
        "model_flops_per_s": rate,
        "share_of_product": None if measured_peak is None else rate / measured_peak,
        **shares,
    }
