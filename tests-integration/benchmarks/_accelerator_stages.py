"""The processes of `accelerator.py`: `run` calls the part that a job names."""

from __future__ import annotations

import os
import traceback
from importlib import metadata
from time import perf_counter
from typing import TYPE_CHECKING

import _accelerator_attention
import _accelerator_training
import jax
import jax.numpy as jnp
import numpy as np
from _accelerator_program import reason, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelerator import Job, Record

PACKAGES = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cudnn-cu13"),
    *("nvidia-cublas", "flax", "optax", "orbax-checkpoint", "tensorstore", "numpy"),
    "roxxel",
)


def run(job: Job) -> None:
    """Run a part; add its error as `failed` to the fields that it has saved."""
    fields: Record = {}

    def save(more: Record) -> None:
        fields.update(more)
        job.save(fields)

    try:
        _fail_if_asked(job)
        PARTS[job.part](job, save)
    except BaseException as error:
        traceback.print_exc()
        save({"failed": f"{job.part}: {reason(error)}"})
        raise SystemExit(1) from error


def _fail_if_asked(job: Job) -> None:
    if job.fault == "fail":
        raise RuntimeError("a failure that --inject asked for")


def device(job: Job, save: Callable[[Record], None]) -> None:
    """Measure the device's own limits, and record the versions."""
    began = perf_counter()
    found = jax.devices()[0]
    save(
        {
            "platform": found.platform,
            "device_kind": found.device_kind,
            "num_devices": jax.device_count(),
            "start_s": perf_counter() - began,
            "versions": {name: _version(name) for name in PACKAGES},
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
            "memory": found.memory_stats() or {},
        }
    )
    if found.platform == "cpu" and not job.dry:
        raise RuntimeError(
            "JAX found no accelerator; the end of stages.log may say why, and --dry "
            "runs the stages on a CPU at a tiny size"
        )
    side = 256 if job.dry else 8192
    keys = jax.random.split(jax.random.key(0))
    one, other = (jax.random.normal(key, (side, side), jnp.bfloat16) for key in keys)
    product = jax.jit(jnp.matmul)
    took = [seconds(product, one, other) for _ in range(5)]
    rates = [2 * side**3 / each for each in took]
    save({"matmul_side": side, "matmul_flops_per_s": rates, "peak": max(rates)})
    wide = jnp.ones((1 << 20) if job.dry else (1 << 29), jnp.float32)
    took = [seconds(jax.jit(lambda x: x * 2), wide) for _ in range(5)]
    save({"memory_bytes_per_s": [2 * wide.nbytes / each for each in took]})
    host = np.ones((1 << 18) if job.dry else (1 << 28), np.uint8)
    begin = perf_counter()
    there = jax.device_put(host).block_until_ready()
    up = perf_counter() - begin
    begin = perf_counter()
    np.array(there)
    down = perf_counter() - begin
    rates_of_host = {"to": host.nbytes / up, "from": host.nbytes / down}
    save({"host_bytes_per_s": rates_of_host})


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


PARTS: dict[str, Callable[[Job, Callable[[Record], None]], None]] = {
    "device": device,
    "attention": _accelerator_attention.attention,
    "throughput": _accelerator_training.throughput,
    "run_and_kill": _accelerator_training.run_and_kill,
    "resume": _accelerator_training.resume,
    "run_and_save": _accelerator_training.run_and_save,
    "restore": _accelerator_training.restore,
    "repeat": _accelerator_training.repeat,
    "phase_change": _accelerator_training.phase_change,
    "larger": _accelerator_training.larger,
    "long": _accelerator_training.long,
}
