"""Peak FLOP/s of accelerators: dense matrix products of bfloat16, sums in float32.

The figures are per device of JAX. NVIDIA's data sheets give the figure with sparsity,
which training does not use; this table has half of that figure.
"""

from __future__ import annotations

_TERA = 1e12

_TPUS = {
    # Google Cloud's pages of each version, "Peak compute per chip (bf16)". A chip of
    # v2, v3 or 7x is two devices. JAX's pallas.mosaic lists the names.
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
    # NVIDIA's data sheets, by the first words of the driver's name for the device.
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
    """Return the peak of one device, or None if the table lacks the device.

    Args:
        device_kind: `jax.Device.device_kind`; for a GPU the driver's name.
    """
    peak = _TPUS.get(device_kind)
    if peak is None and " MIG " not in device_kind:  # a slice of a GPU
        name = device_kind.removeprefix("NVIDIA ").replace("-", " ") + " "
        known = [start for start in _GPUS if name.startswith(start + " ")]
        peak = _GPUS[max(known, key=len)] if known else None
    return None if peak is None else peak * _TERA
