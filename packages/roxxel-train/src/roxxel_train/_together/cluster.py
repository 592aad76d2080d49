"""Find the other processes of this program: the table of launchers.

A launcher tells a process by variables, or Ray Train by its context, how many processes
it has started. The first launcher of `_LAUNCHERS` that counts several processes
decides. Inner launchers come first, because `torchrun` inside a step of Slurm counts
more processes than Slurm. A launcher that counts one process decides nothing, because
container images set `WORLD_SIZE=1` by default. Only the user's own
`JAX_NUM_PROCESSES=1` means that this process is alone.

It is an error if a launcher counts several processes but tells too little to connect
them. The error says what to set. Otherwise each process would train alone.
"""

from __future__ import annotations

import importlib
import socket
import sys
import zlib
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from roxxel_store.records import find_object

from roxxel_train.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COORDINATOR_ADDRESS = "JAX_COORDINATOR_ADDRESS"
NUM_PROCESSES = "JAX_NUM_PROCESSES"
PROCESS_ID = "JAX_PROCESS_ID"
LOCAL_DEVICE_IDS = "JAX_LOCAL_DEVICE_IDS"

_BY_HAND = (
    f"set {COORDINATOR_ADDRESS} (host of process 0 and a free port), {NUM_PROCESSES} "
    f"and {PROCESS_ID}, or {NUM_PROCESSES}=1 to run alone"
)

_PORT = 62123
"""Port of process 0, if a launcher gives each job its own hosts but no port."""

_OPEN_MPI = "OMPI_COMM_WORLD_SIZE"
_OPEN_MPI_ADDRESS = "OMPI_MCA_orte_hnp_uri"

_SLURM = "SLURM_STEP_NODELIST"
_SLURM_TASKS = "SLURM_STEP_NUM_TASKS"
_SLURM_NEEDED = ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""The variables, besides `_SLURM`, that JAX reads in a step of Slurm."""

_TPU_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")


@dataclass(frozen=True)
class Cluster:
    """The processes of one program. JAX itself finds values that are None here.

    Attributes:
        name: The system that names the processes, such as `Slurm`, for messages.
        num_processes: Number of processes.
        process_id: Index of this process.
        coordinator_address: Host and port of process 0.
        detection: How JAX finds missing values: `"deactivate"` if none is missing, None
            for JAX's own choice.
        has_own_devices: Whether this process uses every GPU that it sees. Otherwise JAX
            restricts a process of Slurm or Open MPI to one GPU.
        local_device: The only GPU that this process uses; None if JAX chooses it.
        ask_address: Returns the address, after all processes have exchanged messages.
        is_counted_by_jax: Whether JAX counts the processes when it finds the devices,
            so that a process without a connection knows whether it is alone.
    """

    name: str
    num_processes: int | None = None
    process_id: int | None = None
    coordinator_address: str | None = None
    detection: str | None = None
    has_own_devices: bool = False
    local_device: int | None = None
    ask_address: Callable[[], str] | None = None
    is_counted_by_jax: bool = False

    def __str__(self) -> str:
        """Return `process 1 of 2 (Slurm)`, as far as the numbers are known."""
        if self.process_id is None:
            return f"this process ({self.name})"
        return f"process {self.process_id} of {self.num_processes} ({self.name})"


def find_cluster(environ: Mapping[str, str]) -> Cluster | None:
    """Return the cluster that the environment describes; None for a single process.

    Raises:
        ClusterError: A launcher counts several processes, and a variable that it sets
            is missing or is not a number.
    """
    if NUM_PROCESSES in environ and _integer(environ, NUM_PROCESSES, _BY_HAND) == 1:
        return None
    found = next(filter(None, (find(environ) for find in _LAUNCHERS)), None)
    if found is not None:
        number, index = found.num_processes, found.process_id
        if number is not None and index is not None and not 0 <= index < number:
            raise ClusterError(
                f"{found.name} names process {index} of {number} processes; the index "
                "must be below the number, so check how the program was started"
            )
    return found


def check_connected(environ: Mapping[str, str]) -> None:
    """Refuse to train alone; call this in a process that is not connected.

    Raises:
        ClusterError: A launcher counts this process among several.
    """
    found = find_cluster(environ)
    if found is not None and not found.is_counted_by_jax:
        raise ClusterError(
            f"{found} is not connected to the others, and would train alone; call "
            "roxxel_train.distributed.initialize() at the top of the program, before "
            f"JAX uses a device, or set {NUM_PROCESSES}=1 if it is alone"
        )


def _from_jax(environ: Mapping[str, str]) -> Cluster | None:
    if NUM_PROCESSES not in environ:
        return None
    return Cluster(
        NUM_PROCESSES,
        _integer(environ, NUM_PROCESSES, _BY_HAND),
        _integer(environ, PROCESS_ID, _BY_HAND),
        _variable(environ, COORDINATOR_ADDRESS, _BY_HAND),
        detection=detection_of_whole(environ),
    )


def detection_of_whole(environ: Mapping[str, str]) -> str | None:
    """Return the `detection` of a cluster whose numbers and address are all given."""
    # Without "deactivate", JAX would query Kubernetes although nothing is missing.
    return "deactivate" if "KUBERNETES_SERVICE_HOST" in environ else None


def is_ray_worker() -> bool:
    """Return whether Ray Train has started this process, and waits for its function."""
    return _ray_context() is not None


def _ray_context() -> Any:
    train: Any = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        return train.get_context()
    except (RuntimeError, DeprecationWarning):
        return None  # the driver, or a trial of Ray Tune


def _from_ray(environ: Mapping[str, str]) -> Cluster | None:
    """Ask the context of Ray Train, in a process that has imported `ray.train`."""
    context = _ray_context()
    if context is None or context.get_world_size() == 1:
        return None
    number, index = context.get_world_size(), context.get_world_rank()

    def ask() -> str:
        collective = importlib.import_module("ray.train.collective")
        own = None
        if index == 0:
            with socket.socket() as holder:
                holder.bind(("", 0))
                port = holder.getsockname()[1]
            own = _joined(sys.modules["ray"].util.get_node_ip_address(), port)
        return collective.broadcast_from_rank_zero(own)

    address = environ.get(COORDINATOR_ADDRESS)
    return Cluster(
        "Ray Train",
        number,
        index,
        address,
        detection="deactivate",
        ask_address=None if address else ask,
    )


def _from_open_mpi(environ: Mapping[str, str]) -> Cluster | None:
    number = _count(environ, _OPEN_MPI)
    if number is None:
        return None
    address = environ.get(COORDINATOR_ADDRESS)
    if address is None and _OPEN_MPI_ADDRESS not in environ:
        return _asking_mpi(environ, "Open MPI", "OMPI_COMM_WORLD")
    return Cluster(
        "Open MPI",
        number,
        _integer(environ, "OMPI_COMM_WORLD_RANK", _BY_HAND),
        address,
        has_own_devices=environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == "1",
    )


def _from_slurm(environ: Mapping[str, str]) -> Cluster | None:
    # A batch script runs outside of any step, so this variable is not set there.
    if _SLURM not in environ:
        return None
    way = f"start the program by srun, or {_BY_HAND}"
    # A shell of `salloc` is a step of one task, but SLURM_NTASKS counts all tasks of
    # the allocation.
    tasks = _SLURM_TASKS if _SLURM_TASKS in environ else "SLURM_NTASKS"
    number = _integer(environ, tasks, way)
    if number == 1:
        return None
    for name in _SLURM_NEEDED:
        _variable(environ, name, way)
    has_host = environ.get("SLURM_STEP_NUM_NODES") == str(number)
    is_bound = environ.get("SLURM_GPU_BIND", "none") != "none"
    return Cluster(
        "Slurm",
        number,
        _integer(environ, "SLURM_PROCID", way),
        environ.get(COORDINATOR_ADDRESS),
        has_own_devices=has_host or is_bound or "SLURM_GPUS_PER_TASK" in environ,
    )


def _from_mpi(
    environ: Mapping[str, str],
    name: str,
    prefix: str,
    local: tuple[str, str] | None = None,
) -> Cluster | None:
    """Find the processes of an MPI whose variables do not name process 0's host."""
    number = _count(environ, f"{prefix}_SIZE")
    # `srun --mpi=pmi2` sets them too, and Slurm's own variables tell more.
    if number is None or environ.get(_SLURM_TASKS) == str(number):
        return None
    return _asking_mpi(environ, name, prefix, local)


def _asking_mpi(
    environ: Mapping[str, str],
    name: str,
    prefix: str,
    local: tuple[str, str] | None = None,
) -> Cluster:
    """Return the processes; `local` are the variables of rank and size on a host."""
    size, rank = f"{prefix}_SIZE", f"{prefix}_RANK"
    local = local or (f"{prefix}_LOCAL_RANK", f"{prefix}_LOCAL_SIZE")
    way = (
        f"set {COORDINATOR_ADDRESS} to the host of process 0 and a free port, as in "
        "HOST:62123, in all processes, or install mpi4py, which JAX then asks; "
        f"{NUM_PROCESSES}=1 runs alone"
    )
    address = environ.get(COORDINATOR_ADDRESS)
    if address is None and find_spec("mpi4py") is None:
        raise ClusterError(
            f"{name} counts {environ[size]} processes ({size}) but does not name the "
            f"host of process 0; {way}"
        )
    number, index = _integer(environ, size, way), _integer(environ, rank, way)
    if address is None:
        return Cluster(name, number, index, detection="mpi4py")
    device = _local_device(environ, *local)
    return Cluster(name, number, index, address, "deactivate", local_device=device)


def _local_device(environ: Mapping[str, str], rank: str, size: str) -> int | None:
    """Return the GPU of a process that shares its host; None if it may use all GPUs."""
    sees_several = "," in environ.get("CUDA_VISIBLE_DEVICES", ",")
    is_alone = environ.get(size) == "1" or rank not in environ
    if is_alone or not sees_several or LOCAL_DEVICE_IDS in environ:
        return None
    return _integer(environ, rank, f"check it, or set {LOCAL_DEVICE_IDS}")


def _from_torch(environ: Mapping[str, str]) -> Cluster | None:
    """Find the processes of torchrun, and of launchers that set the same variables."""
    number = _count(environ, "WORLD_SIZE")
    if number is None or "RANK" not in environ:
        return None
    way = f"start the program by torchrun, or {_BY_HAND}"
    host = _variable(environ, "MASTER_ADDR", way)
    port = _integer(environ, "MASTER_PORT", way)
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = _port(port)  # the agent of torchrun itself serves at MASTER_PORT
    return Cluster(
        "torchrun",
        number,
        _integer(environ, "RANK", way),
        environ.get(COORDINATOR_ADDRESS) or _joined(host, port),
        detection="deactivate",
        local_device=_local_device(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    )


def _from_job(
    environ: Mapping[str, str],
    name: str,
    size: str,
    rank: str,
    address: Callable[[Mapping[str, str], str], str],
    beside: str = "",
) -> Cluster | None:
    """Find the processes of a launcher with one process per host.

    `address` returns the address of process 0 from an environment; its second argument
    is the remedy for an error.
    """
    number = _count(environ, size)
    # Any program may use a name such as NUM_PROCESSES for its own workers.
    if number is None or not (rank in environ or beside in environ):
        return None
    way = f"check how {name} starts the program, or {_BY_HAND}"
    return Cluster(
        name,
        number,
        _integer(environ, rank, way),
        environ.get(COORDINATOR_ADDRESS) or address(environ, way),
        detection="deactivate",
    )


def _of_jaxjob(environ: Mapping[str, str], way: str) -> str:
    host = _variable(environ, "COORDINATOR_ADDRESS", way)
    if ":" in host.rpartition("]")[2] and "COORDINATOR_PORT" not in environ:
        return host
    return _joined(host, _integer(environ, "COORDINATOR_PORT", way))


def _of_skypilot(environ: Mapping[str, str], way: str) -> str:
    host = _variable(environ, "SKYPILOT_NODE_IPS", way).split()[0]
    # Tasks of one cluster may share hosts.
    task = environ.get("SKYPILOT_TASK_ID", "")
    return _joined(host, _port(zlib.crc32(task.encode())))


def _of_pet(environ: Mapping[str, str], way: str) -> str:
    port = _integer(environ, "PET_MASTER_PORT", way)
    return _joined(_variable(environ, "PET_MASTER_ADDR", way), port)


def _of_aws_batch(environ: Mapping[str, str], way: str) -> str:
    # AWS sets the address on all nodes but the main one, which process 0 has to be.
    if environ.get("AWS_BATCH_JOB_NODE_INDEX") == "0":
        return _joined(socket.gethostname(), _PORT)
    host = _variable(environ, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", way)
    return _joined(host, _PORT)


def _from_sagemaker(environ: Mapping[str, str]) -> Cluster | None:
    text = environ.get("SM_HOSTS")
    if not text:
        return None
    way = f"check the variables of SageMaker, or {_BY_HAND}"
    listed: Any = (find_object(f'{{"hosts": {text}}}') or {}).get("hosts")
    if not isinstance(listed, list):
        raise ClusterError(f"SM_HOSTS={text!r} is not a list in JSON; {way}")
    hosts = [str(host) for host in cast("list[Any]", listed)]
    if len(hosts) < 2:
        return None
    own = _variable(environ, "SM_CURRENT_HOST", way)
    ordered = sorted(hosts, key=lambda host: (len(host), host))  # algo-2, algo-10
    if own not in ordered:
        raise ClusterError(f"SM_CURRENT_HOST={own!r} is not in SM_HOSTS={hosts}; {way}")
    return Cluster(
        "SageMaker",
        len(ordered),
        ordered.index(own),
        environ.get(COORDINATOR_ADDRESS) or _joined(ordered[0], _PORT),
        detection="deactivate",
    )


def _from_tpu(environ: Mapping[str, str]) -> Cluster | None:
    hosts = next((environ[name] for name in _TPU_HOSTS if name in environ), None)
    has_slices = environ.get("MEGASCALE_NUM_SLICES", "1") not in {"", "1"}
    if has_slices or (hosts is not None and "," in hosts):
        return Cluster("TPU")
    if hosts is not None:
        return None
    # Importing JAX on a TPU virtual machine sets TPU_ML_PLATFORM. If no metadata server
    # can name the hosts of the slice, the import sets TPU_SKIP_MDS_QUERY too.
    if "TPU_ML_PLATFORM" in environ and "TPU_SKIP_MDS_QUERY" not in environ:
        return Cluster("TPU", is_counted_by_jax=True)
    return None


def _from_kubernetes(environ: Mapping[str, str]) -> Cluster | None:
    # Only pods of an indexed Job have an index. All Jobs of a JobSet are indexed.
    if not {"KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"} <= environ.keys():
        return None
    if not environ.keys().isdisjoint(_TPU_HOSTS):
        return None
    if find_spec("kubernetes") is None:
        raise ClusterError(
            "this pod of an indexed Job (JOB_COMPLETION_INDEX) does not know how many "
            f"pods the Job has; set {NUM_PROCESSES} (1 for a single pod), {PROCESS_ID} "
            f"and {COORDINATOR_ADDRESS} in its template, or install jax[k8s]"
        )
    return Cluster("Kubernetes")


def _refuse(
    environ: Mapping[str, str], name: str, size: str, beside: str = "", way: str = ""
) -> Cluster | None:
    """Refuse a launcher that counts processes but tells too little to connect them.

    The variable `size` counts the processes. If any program may set it, the
    variable `beside` shows that a launcher did. `way` is the remedy to try first.
    """
    number = _count(environ, size)
    if number is None or (beside and beside not in environ):
        return None
    raise ClusterError(
        f"{name} counts {number} processes ({size}) but does not say where process 0 "
        f"is; {way}{_BY_HAND}"
    )


def _refuse_listed(environ: Mapping[str, str], variable: str) -> Cluster | None:
    """Refuse the JSON of TensorFlow and Vertex AI, which lists hosts by their job."""
    text = environ.get(variable)
    if not text:
        return None
    cluster = (find_object(text) or {}).get("cluster")
    jobs = cast("dict[str, Any]", cluster) if isinstance(cluster, dict) else {}
    number = sum(len(x) for x in jobs.values() if isinstance(x, list | dict))
    if number < 2:
        return None
    raise ClusterError(f"{variable} lists {number} processes; {_BY_HAND}")


def _refuse_pmix(environ: Mapping[str, str]) -> Cluster | None:
    if "PMIX_RANK" not in environ or not environ.keys().isdisjoint({_OPEN_MPI, _SLURM}):
        return None
    raise ClusterError(
        f"PMIX_RANK={environ['PMIX_RANK']} is set, but no variable says how many "
        f"processes there are; {_BY_HAND}"
    )


_LAUNCHERS: tuple[Callable[[Mapping[str, str]], Cluster | None], ...] = (
    _from_jax,
    _from_ray,
    _from_torch,
    _from_open_mpi,
    partial(
        _from_mpi,
        name="MPICH or Intel MPI",
        prefix="PMI",
        local=("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ),
    partial(_from_mpi, name="MVAPICH2", prefix="MV2_COMM_WORLD"),
    partial(_from_mpi, name="jsrun", prefix="JSM_NAMESPACE"),
    partial(_from_mpi, name="Horovod", prefix="HOROVOD"),
    _from_slurm,
    _from_tpu,
    partial(
        _from_job,
        name="Kubeflow",
        size="NUM_PROCESSES",
        rank="PROCESS_ID",
        address=_of_jaxjob,
        beside="COORDINATOR_ADDRESS",
    ),
    partial(
        _from_job,
        name="Kubeflow's torch runtime",
        size="PET_NNODES",
        rank="PET_NODE_RANK",
        address=_of_pet,
    ),
    partial(
        _from_job,
        name="SkyPilot",
        size="SKYPILOT_NUM_NODES",
        rank="SKYPILOT_NODE_RANK",
        address=_of_skypilot,
    ),
    partial(
        _from_job,
        name="AWS Batch",
        size="AWS_BATCH_JOB_NUM_NODES",
        rank="AWS_BATCH_JOB_NODE_INDEX",
        address=_of_aws_batch,
    ),
    _from_sagemaker,
    _from_kubernetes,
    partial(
        _refuse,
        name="the launcher",
        size="WORLD_SIZE",
        way="RANK is not set: start the program by torchrun, or ",
    ),
    partial(
        _refuse,
        name="Azure ML",
        size="AZUREML_NODE_COUNT",
        way="give the job the distribution PyTorch or MPI, or ",
    ),
    partial(_refuse, name="the launcher", size="NUM_NODES", beside="NODE_RANK"),
    partial(_refuse, name="the launcher", size="NNODES", beside="NODE_RANK"),
    partial(_refuse_listed, variable="TF_CONFIG"),
    partial(_refuse_listed, variable="CLUSTER_SPEC"),
    _refuse_pmix,
)


def _count(environ: Mapping[str, str], name: str) -> int | None:
    """Return how many processes a variable counts; None for fewer than two."""
    if not environ.get(name):
        return None
    number = _integer(environ, name, f"check it, or {_BY_HAND}")
    return None if number < 2 else number


def _variable(environ: Mapping[str, str], name: str, way: str) -> str:
    """Return a variable; `way` is the remedy if the launcher has not set it."""
    value = environ.get(name, "").strip()
    if not value:
        raise ClusterError(f"the launcher has not set {name}; {way}")
    return value


def _integer(environ: Mapping[str, str], name: str, way: str) -> int:
    value = _variable(environ, name, way)
    if not value.isdecimal():
        raise ClusterError(f"{name}={value!r} is not a number; {way}")
    return int(value)


def _port(seed: int) -> int:
    """Return a port above the ports that systems give to programs, as JAX does."""
    return 61440 + seed % 4096


def _joined(host: str, port: int) -> str:
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    return f"[{host}]:{port}" if is_bare_ipv6 else f"{host}:{port}"
