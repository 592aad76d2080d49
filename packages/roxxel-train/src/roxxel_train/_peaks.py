"""Peak FLOP/s of accelerators: dense matrix products of bfloat16, sums in float32.

Per device as JAX counts devices. NVIDIA's data sheets print the figure with sparsity,
which training does not use; here is half of that.
"""

from __future__ import annotations

_TERA = 1e12

_TPUS = {
    # Google Cloud's pages of each version, "Peak compute per chip (bf16)". Chips of v2,
    # v3 and 7x are two devices each; the names are those of JAX's pallas.mosaic.
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
    # NVIDIA's data sheets, by the beginning of the name that its driver gives.
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
    """Return the peak of one device, None where it is not known.

    Args:
        device_kind: `jax.Device.device_kind`; for a GPU its driver's name of it.
    """
    peak = _TPUS.get(device_kind)
    if peak is None and " MIG " not in device_kind:  # a slice of a GPU
        name = device_kind.removeprefix("NVIDIA ").replace("-", " ") + " "
        known = [start for start in _GPUS if name.startswith(start + " ")]
        peak = _GPUS[max(known, key=len)] if known else None
    return None if peak is None else peak * _TERA
