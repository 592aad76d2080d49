"""Connect the processes of one program, and offer barriers by name.

At the top of a script::

    from roxxel_train.distributed import initialize

    initialize()  # before JAX touches a device

`initialize` connects the processes that a launcher has started, such as Slurm,
torchrun, Kubernetes or `python -m roxxel_train.local`. In a single process `initialize`
does nothing.
"""

from __future__ import annotations

import os
import time
from queue import Empty, SimpleQueue
from threading import Thread

import jax
from roxxel_ckpt.coordination import coordination_service

from roxxel_train._together import launcher, meeting
from roxxel_train._together.barriers import barrier
from roxxel_train._together.cluster import (
    LOCAL_DEVICE_IDS,
    Cluster,
    detection_of_whole,
    find_cluster,
)
from roxxel_train._together.texts import print_error, titled
from roxxel_train._together.watcher import watcher
from roxxel_train.errors import ClusterError

__all__ = ["barrier", "initialize"]

_BACKSTOP_S = 60
"""Time after `timeout_s` until JAX aborts a program that does not end on its own."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    timeout_s: float = 1800.0,
) -> None:
    """Connect the processes of this program, if there are several.

    After this call the processes end together. If an exception ends the program in one
    process, or a process is killed, all other processes exit too, with exit code 1 and
    the reason on standard error.

    This function calls `jax.distributed.initialize` if an argument is given, or if a
    launcher counts several processes: `JAX_NUM_PROCESSES`, Ray Train, torchrun, Open
    MPI and other MPIs, Slurm, a pod of TPUs, Kubeflow, SkyPilot, AWS Batch, SageMaker
    or an indexed Job of Kubernetes. The guide "Run on a cluster" has a section for each
    of them. With `JAX_NUM_PROCESSES=1`, the process is alone, whatever other variables
    say.

    If a launcher counts several processes but tells too little to connect them, this
    function raises an error that names the variable and says what to set. A `Trainer`
    raises the same error in a process that was not connected, so no process of several
    trains alone.

    If several processes share a host, each uses the GPU with its index on the host. A
    process that is alone on its host, or to which Slurm has bound GPUs
    (`--gpus-per-task`, `--gpu-bind`), uses every GPU that it sees.

    This function does not connect processes that are already connected.

    While they wait, the processes print every 30 seconds who is missing.

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
        numbers = (num_processes, process_id, coordinator_address)
        detection = None if None in numbers else detection_of_whole(os.environ)
        cluster = Cluster("given arguments", *numbers, detection=detection)
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
    ask, address = cluster.ask_address, cluster.coordinator_address
    if address is not None and not address.rpartition(":")[2].isdecimal():
        raise ClusterError(
            f"{cluster} got the address {address!r} of process 0, which has no port; "
            "give host and port, as in HOST:62123"
        )

    def connect() -> None:
        nonlocal address
        try:
            address = address if ask is None else ask()
            jax.distributed.initialize(
                address,
                cluster.num_processes,
                cluster.process_id,
                cluster.local_device,
                cluster_detection_method=cluster.detection,
                initialization_timeout=max(1, round(timeout_s + _BACKSTOP_S)),
            )
        except Exception as error:  # noqa: BLE001 - raised below
            ended.put(error)
        else:
            ended.put(None)

    Thread(target=connect, name="roxxel-connect", daemon=True).start()
    began_s = time.monotonic()
    while True:
        waited_s = time.monotonic() - began_s
        try:
            error = ended.get(
                timeout=max(0.0, min(meeting.TELL_S, timeout_s - waited_s))
            )
            break
        except Empty:
            waited_s = time.monotonic() - began_s
        index, count = cluster.process_id, cluster.num_processes
        who = ""
        if address is not None and index is not None and count is not None:
            who = f": {meeting.missing(address, index, count)}"
        if waited_s >= timeout_s:
            raise ClusterError(
                f"{cluster} did not find the other processes within {timeout_s:g} s"
                f"{who}; check that all of them were started and can reach the host of "
                "process 0, then start all of them again"
            )
        print_error(f"{cluster} has waited {waited_s:.0f} s for the others{who}")
    if error is not None:
        raise ClusterError(
            f"{cluster} cannot connect to the other processes ({titled(error)}); check "
            "how the program was started"
        ) from error
