"""Finds the other processes of this program in its environment variables.

The rules are those of `jax.distributed.initialize`, but this module first decides
whether there are several processes: JAX alone would wait for processes that nobody
starts, for example in a shell of `salloc`. JAX finds the address of process 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from roxxel_train.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"
LOCAL_DEVICE_IDS = "JAX_LOCAL_DEVICE_IDS"

_OPEN_MPI = "OMPI_COMM_WORLD_SIZE"
_OPEN_MPI_ADDRESS = "OMPI_MCA_orte_hnp_uri"

_SLURM = "SLURM_STEP_NODELIST"
_SLURM_NEEDED = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""The variables that JAX reads, besides `_SLURM`, in a step of Slurm."""

_POD = "KUBERNETES_SERVICE_HOST"

_REMEDIES = {
    NUM_PROCESSES: f"set {COORDINATOR_ADDRESS}, {PROCESS_ID} and {NUM_PROCESSES}",
    _OPEN_MPI: f"start the program by mpirun, or set {NUM_PROCESSES}=1",
    _SLURM: f"start the program by srun, or set {NUM_PROCESSES}=1",
}
"""Advice for an error: a variable is set, but the variables that it needs are not."""


@dataclass(frozen=True)
class Cluster:
    """The processes of one program. JAX itself finds the values that are None.

    Attributes:
        name: The system that names the processes, such as `Slurm`, for messages.
        num_processes: Number of processes.
        process_id: Index of this process.
        coordinator_address: Host and port of process 0.
        has_own_devices: Whether this process uses every GPU that it sees. Otherwise JAX
            restricts a process of Slurm or Open MPI to one GPU.
        is_pod: Whether this process runs in a pod of Kubernetes.
    """

    name: str
    num_processes: int | None = None
    process_id: int | None = None
    coordinator_address: str | None = None
    has_own_devices: bool = False
    is_pod: bool = False

    def __str__(self) -> str:
        """Return `process 1 of 2 (Slurm)`, as far as the numbers are known."""
        if self.process_id is None:
            return f"this process ({self.name})"
        return f"process {self.process_id} of {self.num_processes} ({self.name})"


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that an environment names; None for a single process.

    Raises:
        ClusterError: A variable is missing or is not a number.
    """
    for find in (_from_jax, _from_open_mpi, _from_slurm, _from_tpu, _from_kubernetes):
        found = find(environ)
        if found is not None:
            _check(found)
            is_pod = _POD in environ
            return None if found.num_processes == 1 else replace(found, is_pod=is_pod)
    return None


def _from_jax(environ: Mapping[str, str]) -> Cluster | None:
    if NUM_PROCESSES not in environ:
        return None
    number = _integer(environ, NUM_PROCESSES, NUM_PROCESSES)
    if number == 1:
        return Cluster(NUM_PROCESSES, 1, 0)
    return Cluster(
        NUM_PROCESSES,
        number,
        _integer(environ, PROCESS_ID, NUM_PROCESSES),
        _variable(environ, COORDINATOR_ADDRESS, NUM_PROCESSES),
    )


def find_lone(environ: Mapping[str, str]) -> str | None:
    """Return a warning for a process that no call has connected to the others.

    The result is None if the environment names a single process.
    """
    remedy = (
        "call roxxel_train.distributed.initialize() at the top of the script, or set "
        f"{NUM_PROCESSES}=1 if it is meant"
    )
    try:
        cluster = find_cluster(environ)
    except ClusterError as error:
        return f"this process trains alone, and may be one of several: {error}"
    if cluster is None:
        return None
    return (
        f"{cluster} trains alone, because nothing has connected it to the others; "
        f"{remedy}"
    )


def _from_open_mpi(environ: Mapping[str, str]) -> Cluster | None:
    if _OPEN_MPI not in environ:
        return None
    number = _integer(environ, _OPEN_MPI, _OPEN_MPI)
    if number == 1:
        return Cluster("Open MPI", 1, 0)
    address = environ.get(COORDINATOR_ADDRESS)
    if address is None and _OPEN_MPI_ADDRESS not in environ:
        raise ClusterError(
            f"Open MPI started {number} processes without {_OPEN_MPI_ADDRESS}, which "
            "JAX needs (Open MPI 5 does not set it); set JAX_COORDINATOR_ADDRESS to "
            "the host of process 0 and a free port, as in HOST:62123"
        )
    return Cluster(
        "Open MPI",
        number,
        _integer(environ, "OMPI_COMM_WORLD_RANK", _OPEN_MPI),
        address,
        has_own_devices=environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1",
    )


def _from_slurm(environ: Mapping[str, str]) -> Cluster | None:
    # A batch script runs outside of any step, so this variable is not set there.
    if _SLURM not in environ:
        return None
    # A shell of `salloc` is a step of one task, but SLURM_NTASKS counts all tasks of
    # the allocation.
    tasks = "SLURM_STEP_NUM_TASKS"
    number = _integer(environ, tasks if tasks in environ else "SLURM_NTASKS", _SLURM)
    if number == 1:
        return Cluster("Slurm", 1, 0)
    for name in _SLURM_NEEDED:
        _variable(environ, name, _SLURM)
    has_host = environ.get("SLURM_STEP_NUM_NODES") == str(number)
    is_bound = environ.get("SLURM_GPU_BIND", "none") != "none"
    return Cluster(
        "Slurm",
        number,
        _integer(environ, "SLURM_PROCID", _SLURM),
        environ.get(COORDINATOR_ADDRESS),
        has_own_devices=has_host or is_bound or "SLURM_GPUS_PER_TASK" in environ,
    )


def _from_tpu(environ: Mapping[str, str]) -> Cluster | None:
    slices = environ.get("MEGASCALE_NUM_SLICES", "1")
    hosts = environ.get("TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES"))
    if hosts is not None or slices not in {"", "1"}:
        is_single = "," not in (hosts or "") and slices in {"", "1"}
        return Cluster("TPU", 1, 0) if is_single else Cluster("TPU")
    # Importing JAX on a TPU virtual machine sets the first variable. It also sets the
    # second variable if no metadata server can name the hosts of the slice.
    if "TPU_ML_PLATFORM" in environ and "TPU_SKIP_MDS_QUERY" not in environ:
        return Cluster("TPU")
    return None


def _from_kubernetes(environ: Mapping[str, str]) -> Cluster | None:
    # Only pods of an indexed Job have an index. All Jobs of a JobSet are indexed.
    if not {_POD, "JOB_COMPLETION_INDEX"} <= environ.keys():
        return None
    if find_spec("kubernetes") is None:
        raise ClusterError(
            "this pod of an indexed Job does not know how many pods the Job has; set "
            f"{NUM_PROCESSES} (1 for a single pod), {PROCESS_ID} and "
            f"{COORDINATOR_ADDRESS} in its template, or install jax[k8s]"
        )
    return Cluster("Kubernetes")


def _check(cluster: Cluster) -> None:
    number, index = cluster.num_processes, cluster.process_id
    if number is not None and index is not None and not 0 <= index < number:
        raise ClusterError(
            f"{cluster.name} names process {index} of {number} processes; the index "
            f"must be below {number}, so check how the program was started"
        )


def _variable(environ: Mapping[str, str], name: str, beside: str) -> str:
    value = environ.get(name)
    if not value:
        raise ClusterError(f"{beside} is set but {name} is not; {_REMEDIES[beside]}")
    return value


def _integer(environ: Mapping[str, str], name: str, beside: str) -> int:
    value = _variable(environ, name, beside)
    if not value.isdecimal():
        raise ClusterError(f"{name}={value!r} is not a number; set it to 0, 1, 2 ...")
    return int(value)
