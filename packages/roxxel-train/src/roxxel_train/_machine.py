"""Use of the accelerators: FLOP/s of the model, share of the peak, memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from roxxel_train._peaks import peak_flops_per_s

if TYPE_CHECKING:
    from collections.abc import Iterable


class Machine:
    """The devices of a run, and the work that a token costs.

    Args:
        model: Model whose parameters count if `flops_per_token` is None.
        devices: All devices of the mesh (`jax.Device`), also of other processes.
        flops_per_token: Floating-point operations that training needs per token,
            forward and backward, without recomputation. The default is 6 per parameter
            (Kaplan et al., Scaling Laws for Neural Language Models, 2020; Chowdhery et
            al., PaLM, 2022, appendix B). The default leaves out the scores of
            attention, 12 x layers x width x sequence length in PaLM's count, and counts
            all experts of a mixture and all embeddings: give your own number if
            these matter.

    Raises:
        ValueError: `flops_per_token` is not above zero and finite.
    """

    def __init__(
        self,
        model: nnx.Module,
        devices: Iterable[Any],
        flops_per_token: float | None = None,
    ) -> None:
        if flops_per_token is None:
            flops_per_token = 6.0 * num_parameters(model)
        elif not 0 < flops_per_token < math.inf:
            raise ValueError(
                "flops_per_token must be above 0 and finite, "
                f"got {flops_per_token}; omit the argument for 6 x parameters"
            )
        devices = list(devices)
        kinds = {device.device_kind for device in devices}
        peak = peak_flops_per_s(kinds.pop()) if len(kinds) == 1 else None
        self._flops_per_token = flops_per_token
        self._peak_flops_per_s = None if peak is None else peak * len(devices)
        process = jax.process_index()
        self._own = [d for d in devices if d.process_index == process]

    def fields(self, tokens_per_s: float) -> dict[str, float]:
        """Return the fields of a row that are known on this machine.

        Args:
            tokens_per_s: Tokens per second on all devices together.

        Returns:
            `model_flops_per_s`; `mfu`, the share of the peak of all devices;
            `device_bytes` and `device_peak_bytes`, memory in use now and at most so far
            on the fullest device of this process.
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


def num_parameters(model: nnx.Module) -> int:
    """Return the number of elements of all `nnx.Param`s of a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
