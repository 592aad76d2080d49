"""Several processes of one program: joining them, and meeting by name.

At the top of a script::

    from roxxel_train.distributed import initialize

    initialize()  # at the top of the script, before JAX touches a device

Alone, the script runs as ever; under Slurm, Open MPI, on a slice of TPUs, or started by
`python -m roxxel_train.local`, its processes find each other.
"""

from __future__ import annotations

import os
from collections import Counter

import jax

from roxxel_train._coordination import client, place

COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"

_passed: Counter[str] = Counter()
"""How often this process has come to each barrier; the service wants fresh names."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: float = 300.0,
) -> None:
    """Join the processes of this program, if there are several.

    Calls `jax.distributed.initialize` where an argument or the environment says so:
    `JAX_NUM_PROCESSES` (with `JAX_COORDINATOR_ADDRESS` and `JAX_PROCESS_ID`), a Slurm
    step or Open MPI job of several tasks, or TPU hosts listed in the environment. Else,
    or when the processes have been joined already, it does nothing. On any other
    cluster give the arguments, or call `jax.distributed.initialize` yourself.

    Args:
        coordinator_address: Host and port of process 0.
        num_processes: Number of processes.
        process_id: Index of this process.
        timeout_s: How long to wait for the others.

    Raises:
        ValueError: A variable of the environment is missing or is no number.
        RuntimeError: A device has been touched before, or the others do not come.
    """
    if client() is not None:
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
    )


def barrier(name: str, timeout_s: float = 300.0) -> None:
    """Wait until every process has come to the barrier of this name.

    No device is used. A name may be used again: all processes come to the barriers of
    one name equally often. Without several processes it returns at once.

    Args:
        name: Said in the error.
        timeout_s: How long to wait for the others.

    Raises:
        TimeoutError: Some processes did not come in time, by their indices; or this one
            came too late.
    """
    service = client()
    index, num_processes = place()
    if service is None or num_processes == 1:
        return
    _passed[name] += 1
    key = f"roxxel/barrier/{_passed[name]}/{name}"
    service.key_value_set(f"{key}/{index}", "here")
    try:
        service.wait_at_barrier(key, max(1, round(timeout_s * 1000)))
    except RuntimeError as error:
        entries = service.key_value_dir_get(f"{key}/")
        here = {int(entry.rpartition("/")[2]) for entry, _ in entries}
        late = sorted(set(range(num_processes)) - here)
        if not late:
            raise TimeoutError(
                f"barrier {name!r}: process {index} came when the others had given up; "
                "allow more time there, or find out what held this process up"
            ) from error
        raise TimeoutError(
            f"barrier {name!r}: {_processes(late)} of {num_processes} did not come "
            f"within {timeout_s:g} s; look at what was written there"
        ) from error


def _processes(indices: list[int]) -> str:
    listed = ", ".join(map(str, indices[:10]))
    more = ", ..." if len(indices) > 10 else ""
    return f"process{'es' if len(indices) > 1 else ''} {listed}{more}"


def _cluster_has_several() -> bool:
    """Return whether the environment is that of several processes JAX can find."""
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
        raise ValueError(f"{name}={value!r} is no number; set it to 0, 1, 2 ...")
    return int(value)
