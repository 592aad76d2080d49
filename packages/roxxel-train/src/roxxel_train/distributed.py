"""Connects the processes of one program, and offers barriers by name.

At the top of a script::

    from roxxel_train.distributed import initialize

    initialize()  # before JAX touches a device

Under Slurm, Open MPI, Kubernetes or `python -m roxxel_train.local`, and on slices of
TPUs, `initialize` connects the processes. In a single process `initialize` does
nothing.
"""

from __future__ import annotations

import os
from queue import Empty, SimpleQueue
from threading import Thread

import jax
from roxxel_ckpt.coordination import coordination_service

from roxxel_train._together import launcher
from roxxel_train._together.barriers import barrier
from roxxel_train._together.cluster import LOCAL_DEVICE_IDS, Cluster, find_cluster
from roxxel_train._together.texts import brief
from roxxel_train._together.watcher import watcher
from roxxel_train.errors import ClusterError

__all__ = ["barrier", "initialize"]

_HEARTBEAT_TIMEOUT_S = 30
"""Silence after which JAX treats a process as dead and ends the others, in place of
JAX's default of 100 s. The watcher usually detects a dead process earlier."""

_BACKSTOP_S = 60
"""Time after `timeout_s` until JAX aborts a program that does not end by itself."""


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
    environment names several processes. The first of these rules that applies decides:

    - `JAX_NUM_PROCESSES` is set. If the value is 1, the program is a single process;
      otherwise `JAX_COORDINATOR_ADDRESS` and `JAX_PROCESS_ID` must be set too.
    - Open MPI started the program (`OMPI_COMM_WORLD_SIZE`). Open MPI 5 does not provide
      the address of process 0: set `JAX_COORDINATOR_ADDRESS`.
    - The program is a step of Slurm, with `SLURM_STEP_NUM_TASKS` tasks. The script of
      `sbatch` and the shell of `salloc` are a single process: use `srun`.
    - The program runs on a slice of TPUs of several hosts, or on several slices.
    - The program runs in a pod of an indexed Job or a JobSet of Kubernetes. JAX needs
      the package `kubernetes` (`jax[k8s]`) and the permission to read pods and jobs.
      Without the package, set `JAX_NUM_PROCESSES`, `JAX_COORDINATOR_ADDRESS` and
      `JAX_PROCESS_ID` in the template of the pods.

    Under Slurm and Open MPI, JAX restricts each process to the GPU of its index on the
    host. A process that is alone on its host, or to which Slurm has bound GPUs
    (`--gpus-per-task`, `--gpu-bind`), uses every GPU that it sees instead.

    This function does not connect processes that are already connected.

    Args:
        coordinator_address: Host and port of process 0.
        num_processes: Number of processes.
        process_id: Index of this process.
        timeout_s: Longest wait for the other processes, in seconds.

    Raises:
        ClusterError: A variable of the environment is missing or is not a number, JAX
            has already used a device, or a process did not connect in time. After this
            error, end the program.
    """
    if coordination_service() is not None:
        watcher()
        return
    launcher.end_together()
    if (coordinator_address, num_processes, process_id) == (None, None, None):
        cluster = find_cluster(os.environ)
    else:
        cluster = Cluster(
            "given arguments", num_processes, process_id, coordinator_address
        )
    if cluster is None:
        return
    _connect(cluster, timeout_s)
    if cluster.has_own_devices and LOCAL_DEVICE_IDS not in os.environ:
        jax.config.update("jax_cuda_visible_devices", "all")
        jax.config.update("jax_rocm_visible_devices", "all")
    watcher()


def _connect(cluster: Cluster, timeout_s: float) -> None:
    """Initialize JAX in a thread.

    JAX ignores Ctrl-C while it waits, and aborts the program if the wait fails.
    """
    ended: SimpleQueue[Exception | None] = SimpleQueue()
    numbers = (cluster.coordinator_address, cluster.num_processes, cluster.process_id)
    # Without "deactivate", JAX would query Kubernetes for numbers that are all given.
    needs_no_detection = cluster.is_pod and None not in numbers

    def connect() -> None:
        try:
            jax.distributed.initialize(
                *numbers,
                cluster_detection_method="deactivate" if needs_no_detection else None,
                initialization_timeout=max(1, round(timeout_s + _BACKSTOP_S)),
                heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT_S,
            )
        except Exception as error:  # noqa: BLE001 - raised below
            ended.put(error)
        else:
            ended.put(None)

    Thread(target=connect, name="roxxel-connect", daemon=True).start()
    try:
        error = ended.get(timeout=timeout_s)
    except Empty:
        raise ClusterError(
            f"{cluster} did not find the other processes within {timeout_s:g} s; "
            "check that all of them were started and can reach the host of process 0, "
            "then start all of them again"
        ) from None
    if error is not None:
        raise ClusterError(
            f"{cluster} cannot connect to the other processes ({brief(error)}); check "
            "how the program was started"
        ) from error
