"""Connects the processes of one program, and offers barriers by name.

At the top of a script::

    from roxxel_train.distributed import initialize

    initialize()  # before JAX touches a device

Under Slurm, Open MPI or `python -m roxxel_train.local`, and on a slice of TPUs,
`initialize` connects the processes. In a single process `initialize` does nothing.
"""

from __future__ import annotations

import os
from collections import Counter

import jax
from roxxel_ckpt.coordination import coordination_service

from roxxel_train._run.texts import named
from roxxel_train._run.watcher import watcher

COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"

_passed: Counter[str] = Counter()
"""Number of uses of each barrier name; JAX's service requires a new key per use."""

_HEARTBEAT_TIMEOUT_S = 30
"""Silence after which JAX treats a process as dead and ends the others, in place of
JAX's default of 100 s. The watcher usually detects a dead process earlier."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: float = 300.0,
) -> None:
    """Connect the processes of this program, if there are several.

    After this call the processes end together. If an exception ends the program in one
    process, or a process is killed, all other processes exit too, with exit code 1 and
    the reason on standard error.

    This function calls `jax.distributed.initialize` if an argument is given, or if the
    environment names several processes:

    - `JAX_NUM_PROCESSES` is above 1. `JAX_COORDINATOR_ADDRESS` and `JAX_PROCESS_ID`
      must be set too. If `JAX_NUM_PROCESSES` is 1, the program is a single process.
    - The program is a Slurm step or an Open MPI job of several tasks.
    - The environment of a TPU pod lists several hosts or slices.

    On any other cluster give the arguments, or call `jax.distributed.initialize`
    yourself. This function does not connect processes that are already connected.

    Args:
        coordinator_address: Host and port of process 0.
        num_processes: Number of processes.
        process_id: Index of this process.
        timeout_s: Longest wait for the other processes, in seconds.

    Raises:
        ValueError: A variable of the environment is missing or is not a number.
        RuntimeError: JAX has already used a device, or a process did not connect.
    """
    if coordination_service() is not None:
        watcher()
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
    watcher()


def barrier(name: str, timeout_s: float = 300.0) -> None:
    """Wait until every process has called `barrier` with the same name.

    The barrier uses no device. A name may be used again if all processes use the name
    equally often. A single process does not wait.

    Args:
        name: Identifies the barrier, also in the error.
        timeout_s: Longest wait for the other processes, in seconds.

    Raises:
        TimeoutError: Another process did not arrive in time (the error names the
            process), or this process arrived after the others had given up.
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


def _cluster_has_several() -> bool:
    """Return whether the environment names several processes that JAX can connect."""
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
