"""Several processes of one program: joining them, and barriers by name.

At the top of a script::

    from roxxel_train.distributed import initialize

    initialize()  # at the top of the script, before JAX touches a device

A lone script runs as before. Under Slurm, Open MPI, on a slice of TPUs, or started by
`python -m roxxel_train.local`, the processes of the script find each other.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

import jax
from roxxel_ckpt.coordination import coordination_service

if TYPE_CHECKING:
    from collections.abc import Sequence

COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"

_passed: Counter[str] = Counter()
"""Uses of each barrier in this process; the service requires fresh names."""

_HEARTBEAT_TIMEOUT_S = 30
"""Silence after which JAX counts a process as dead and ends the others, in place of
JAX's 100 s. Within a run the trainer notices a dead process earlier."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: float = 300.0,
) -> None:
    """Connect the processes of this program, if there are several.

    Calls `jax.distributed.initialize` if an argument is given or the environment names
    several processes: `JAX_NUM_PROCESSES` (with `JAX_COORDINATOR_ADDRESS` and
    `JAX_PROCESS_ID`), a Slurm step or Open MPI job of several tasks, or a list of TPU
    hosts. Otherwise, and when the processes are connected already, it does nothing. On
    any other cluster give the arguments, or call `jax.distributed.initialize` yourself.

    Args:
        coordinator_address: Host and port of process 0.
        num_processes: Number of processes.
        process_id: Index of this process.
        timeout_s: Longest wait for the others, in seconds.

    Raises:
        ValueError: A variable of the environment is missing or is not a number.
        RuntimeError: JAX has used a device before, or a process did not connect.
    """
    if coordination_service() is not None:
        return
    given = (coordinator_address, num_processes, process_id)
    if NUM_PROCESSES in os.environ and given == (None, None, None):
        num_processes = _integer(NUM_PROCESSES)
        if num_processes == 1:
            return
        process_id = _integer(PROCESS_ID)
        coordinator_address = _variable(COORDINATOR_ADDRESS)
    elif given == (None, None, None) and not _cluster_has_several():
        return
    jax.distributed.initialize(
        coordinator_address,
        num_processes,
        process_id,
        initialization_timeout=max(1, round(timeout_s)),
        heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_S,
    )


def barrier(name: str, timeout_s: float = 300.0) -> None:
    """Wait until every process has called this with the same name.

    No device is used. A name may be used again, equally often in all processes. A lone
    process does not wait.

    Args:
        name: Identifies the barrier, also in the error.
        timeout_s: Longest wait for the others, in seconds.

    Raises:
        TimeoutError: The processes that the error names were not there in time, or
            this process was too late.
    """
    service = coordination_service()
    if service is None or service.process_count == 1:
        return
    _passed[name] += 1
    key = f"roxxel/barrier/{_passed[name]}/{name}"
    service.set(f"{key}/{service.process_index}", "here")
    try:
        service.barrier(key, timeout_s)
    except TimeoutError as error:
        here = set(map(int, service.entries(f"{key}/")))
        late = sorted(set(range(service.process_count)) - here)
        if not late:
            raise TimeoutError(
                f"barrier {name!r}: process {service.process_index} arrived after the "
                "others had given up; give a longer timeout, or make this process "
                "faster before the barrier"
            ) from error
        raise TimeoutError(
            f"barrier {name!r}: {named(late)} of {service.process_count} did not "
            f"arrive within {timeout_s:g} s; read the output of those processes"
        ) from error


def named(indices: Sequence[int]) -> str:
    """Return such as "processes 0, 3"."""
    listed = ", ".join(map(str, indices[:10])) + (", ..." if len(indices) > 10 else "")
    return f"process{'es' if len(indices) > 1 else ''} {listed}"


def _cluster_has_several() -> bool:
    """Return whether the environment names several processes that JAX can find."""
    environ = os.environ
    tasks = (
        environ.get("SLURM_NTASKS", "1") if "SLURM_STEP_NODELIST" in environ else "1"
    )
    ranks = environ.get("OMPI_COMM_WORLD_SIZE", "1")
    slices = environ.get("MEGASCALE_NUM_SLICES", "1")
    hosts = environ.get(
        "TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES", "")
    )
    return "," in hosts or any(n not in {"", "1"} for n in (tasks, ranks, slices))


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(
            f"{NUM_PROCESSES} is set but {name} is not; "
            f"set {COORDINATOR_ADDRESS}, {NUM_PROCESSES} and {PROCESS_ID} together"
        )
    return value


def _integer(name: str) -> int:
    value = _variable(name)
    if not value.isdecimal():
        raise ValueError(f"{name}={value!r} is not a number; set it to 0, 1, 2 ...")
    return int(value)
