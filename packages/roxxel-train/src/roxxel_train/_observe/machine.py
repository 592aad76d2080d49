"""Use of the accelerators: FLOP/s of the model, share of the peak, memory.

A peak is the rate of dense bfloat16 matrix products with float32 sums, per JAX device.
Most of NVIDIA's data sheets give the rate for sparse products, which training does not
use, so the table has half of these figures (`/ 2`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

if TYPE_CHECKING:
    from collections.abc import Iterable


class Machine:
    """The devices of a run, and the floating-point operations of a token.

    `devices` are all devices of the mesh (`jax.Device`), in all processes.
    `flops_per_token` counts the forward and backward pass without recomputation. The
    default is 6 per parameter (Kaplan et al., Scaling Laws for Neural Language Models,
    2020; Chowdhery et al., PaLM, 2022, appendix B). The default leaves out attention
    scores (12 x layers x width x sequence length in PaLM's count), and counts all
    embeddings and all experts of a mixture.

    Attributes:
        kinds: Number of devices of each kind.
    """

    def __init__(
        self,
        model: nnx.Module,
        devices: Iterable[Any],
        flops_per_token: float | None = None,
    ) -> None:
        if flops_per_token is None:
            parameters = jax.tree.leaves(nnx.state(model, nnx.Param))
            flops_per_token = 6.0 * sum(x.size for x in parameters)
        devices = list(devices)
        self.kinds = Counter(str(device.device_kind) for device in devices)
        kinds = set(self.kinds)
        peak = peak_flops_per_s(kinds.pop()) if len(kinds) == 1 else None
        self._flops_per_token = flops_per_token
        self._peak_flops_per_s = None if peak is None else peak * len(devices)
        process = jax.process_index()
        self._own = [d for d in devices if d.process_index == process]

    def fields(self, tokens_per_s: float) -> dict[str, float]:
        """Return the fields of a metrics row that measure the devices.

        `tokens_per_s` counts the tokens of all devices. `mfu` is the model's FLOP/s
        divided by the peak of all devices together. Memory is in bytes, on the fullest
        device of this process.
        """
        flops_per_s = tokens_per_s * self._flops_per_token
        fields: dict[str, float] = {"model_flops_per_s": flops_per_s}
        if self._peak_flops_per_s is not None:
            fields["mfu"] = flops_per_s / self._peak_flops_per_s
        memory = [stats for device in self._own if (stats := device.memory_stats())]
        for name, key in _MEMORY_KEYS.items():
            if memory and all(key in stats for stats in memory):
                fields[name] = max(stats[key] for stats in memory)
        return fields


_MEMORY_KEYS = {
    "device_bytes": "bytes_in_use",
    "device_peak_bytes": "peak_bytes_in_use",
}


_TERA = 1e12

_TPUS = {
    # From Google Cloud's page of each version, "Peak compute per chip (bf16)". A chip
    # of v2, v3 or 7x is two JAX devices. JAX's pallas.mosaic lists the names.
    "TPU v2": 46 / 2,
    "TPU v3": 123 / 2,
    "TPU v4": 275,
    "TPU v5 lite": 197,
    "TPU v5e": 197,
    "TPU v5": 459,
    "TPU v5p": 459,
    "TPU v6 lite": 918,
    "TPU v6e": 918,
    "TPU7x": 2307 / 2,
}

_GPUS = {
    # From NVIDIA's data sheets. A key is the start of the driver's device name.
    "A10": 125,
    "A30": 165,
    "A40": 149.7,
    "A100": 312,
    "L4": 242 / 2,
    "L40": 362.05 / 2,
    "L40S": 733 / 2,
    "H100 PCIe": 1513 / 2,
    "H100 NVL": 1671 / 2,
    "H100 80GB HBM3": 1979 / 2,
    "H200": 1979 / 2,
    "H200 NVL": 1671 / 2,
    "GH200": 1979 / 2,
    "B200": 4500 / 2,
    "GB200": 5000 / 2,
}


def peak_flops_per_s(device_kind: str) -> float | None:
    """Return the peak of a `jax.Device.device_kind`; None for an unknown kind."""
    peak = _TPUS.get(device_kind)
    if peak is None and " MIG " not in device_kind:  # MIG: part of a GPU
        name = device_kind.removeprefix("NVIDIA ").replace("-", " ") + " "
        known = [start for start in _GPUS if name.startswith(start + " ")]
        peak = _GPUS[max(known, key=len)] if known else None
    return None if peak is None else peak * _TERA
