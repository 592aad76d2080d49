"""What one process decides; test_local.py has several real ones."""

from __future__ import annotations

import os
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import pytest
from roxxel_train import ClusterError
from roxxel_train.distributed import barrier, initialize

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")
STEP = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
}
MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1",
}
JAX = {
    "JAX_COORDINATOR_ADDRESS": "10.0.0.1:99",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
}
TORCH = {
    "WORLD_SIZE": "4",
    "RANK": "3",
    "LOCAL_WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "h0",
    "MASTER_PORT": "29500",
}
JAXJOB = {
    "COORDINATOR_ADDRESS": "job-0",
    "COORDINATOR_PORT": "6666",
    "NUM_PROCESSES": "2",
    "PROCESS_ID": "1",
}
SKY = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_TASK_ID": "sky-7",
}
PMI = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-10", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
BATCH = {
    "AWS_BATCH_JOB_NUM_NODES": "2",
    "AWS_BATCH_JOB_NODE_INDEX": "1",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.1",
}
PET = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-0",
    "PET_MASTER_PORT": "29400",
}
HERE = {"JAX_COORDINATOR_ADDRESS": "h0:9"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Catch calls of JAX in an environment without a cluster."""
    found: list[tuple[Any, ...]] = []
    for name in os.environ:
        if name.startswith(("JAX_", "SLURM_", "OMPI_", "TPU_", "PMI")):
            monkeypatch.delenv(name)

    def record(
        *arguments: Any,
        cluster_detection_method: str | None,
        initialization_timeout: int,
    ) -> None:
        assert initialization_timeout > 1800  # after ours, because JAX then aborts
        found.append((*arguments, cluster_detection_method))

    monkeypatch.setattr(jax.distributed, "initialize", record)
    # Nothing is connected, so nothing can be watched.
    monkeypatch.setattr("roxxel_train.distributed.watcher", lambda: None)
    return found


def test_lone_process_connects_to_nothing_and_does_not_wait(
    calls: list[tuple[Any, ...]],
) -> None:
    initialize()
    barrier("alone")

    assert calls == []


def test_variables_of_the_environment_are_taken(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in JAX.items():
        monkeypatch.setenv(name, value)

    initialize()

    assert calls == [("10.0.0.1:99", 2, 1, None, None)]


def test_arguments_win(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")

    initialize("10.0.0.1:99", 4, 3)

    assert calls == [("10.0.0.1:99", 4, 3, None, None)]


@pytest.mark.parametrize(
    ("variables", "connected"),
    [
        (STEP, (None, 16, 9)),
        (STEP | {"JAX_COORDINATOR_ADDRESS": "n1:99"}, ("n1:99", 16, 9)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, None),  # salloc
        (STEP | {"JAX_NUM_PROCESSES": "1"}, None),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),
        (MPI, (None, 4, 3)),
        (MPI | STEP, (None, 4, 3)),  # mpirun in an allocation of Slurm
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, (None, None, None)),
        ({"TPU_PROCESS_ADDRESSES": "a:1,b:1"}, (None, None, None)),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a"} | POD, None),
        ({"MEGASCALE_NUM_SLICES": "2"}, (None, None, None)),
        ({"TPU_ML_PLATFORM": "JAX"}, (None, None, None)),  # a server names the hosts
        ({"TPU_ML_PLATFORM": "JAX", "TPU_SKIP_MDS_QUERY": "1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, None),
        (POD | {"JAX_NUM_PROCESSES": "1"}, None),
        (POD | JAX, ("10.0.0.1:99", 2, 1)),
        (TORCH, ("h0:29500", 4, 3)),
        (TORCH | STEP, ("h0:29500", 4, 3)),  # torchrun in a step of Slurm
        (TORCH | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, ("h0:62268", 4, 3)),
        (TORCH | {"MASTER_ADDR": "fe80::1"}, ("[fe80::1]:29500", 4, 3)),
        (TORCH | {"WORLD_SIZE": "1", "RANK": "0"}, None),
        (TORCH | {"JAX_NUM_PROCESSES": "1"}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"} | STEP, (None, 16, 9)),  # by an image
        ({"WORLD_SIZE": "16"} | STEP, (None, 16, 9)),  # by a script of sbatch
        (JAXJOB, ("job-0:6666", 2, 1)),
        (JAXJOB | {"NUM_PROCESSES": "1", "PROCESS_ID": "0"}, None),
        ({"NUM_PROCESSES": "8"}, None),  # of any program's own workers
        (SKY, ("10.0.0.1:61759", 2, 1)),
        (SKY | {"SKYPILOT_NUM_NODES": "1"}, None),
        (SKY | TORCH, ("h0:29500", 4, 3)),
        (PMI | HERE, ("h0:9", 4, 3)),
        (PMI | {"PMI_SIZE": "16"} | STEP, (None, 16, 9)),  # srun --mpi=pmi2
        (PMI | HERE | STEP, ("h0:9", 4, 3)),  # mpiexec in an allocation of Slurm
        ({"PMI_SIZE": "1", "PMI_RANK": "0"}, None),
        (
            {"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "1"} | HERE,
            ("h0:9", 2, 1),
        ),
        ({"JSM_NAMESPACE_SIZE": "2", "JSM_NAMESPACE_RANK": "1"} | HERE, ("h0:9", 2, 1)),
        ({"HOROVOD_SIZE": "2", "HOROVOD_RANK": "1"} | HERE, ("h0:9", 2, 1)),
        (SAGEMAKER, ("algo-1:62123", 3, 1)),
        ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, None),
        (BATCH, ("10.0.0.1:62123", 2, 1)),
        (PET, ("job-0:29400", 2, 1)),
        ({"AZUREML_NODE_COUNT": "1"}, None),
        ({"AZUREML_NODE_COUNT": "2"} | TORCH, ("h0:29500", 4, 3)),
        ({"NNODES": "2"}, None),
        ({"TF_CONFIG": "nothing"}, None),
        ({"TF_CONFIG": '{"cluster": null}'}, None),
        ({"TF_CONFIG": '{"cluster": {"ps": 3}}'}, None),
        ({"TF_CONFIG": '{"cluster": {"chief": ["a:1"]}}'}, None),
        ({"PMIX_RANK": "1"} | STEP, (None, 16, 9)),
        ({"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, None),
    ],
)
def test_cluster_is_joined_when_it_has_several_processes(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    connected: tuple[Any, ...] | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    initialize()

    assert [call[:3] for call in calls] == ([] if connected is None else [connected])


@pytest.mark.parametrize(
    ("variables", "device", "detection"),
    [
        (JAX, None, None),
        (POD | JAX, None, "deactivate"),
        (TORCH, 1, "deactivate"),
        (TORCH | {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None, "deactivate"),
        (TORCH | {"CUDA_VISIBLE_DEVICES": "5"}, None, "deactivate"),
        (TORCH | {"CUDA_VISIBLE_DEVICES": "4,5"}, 1, "deactivate"),
        (TORCH | {"JAX_LOCAL_DEVICE_IDS": "0"}, None, "deactivate"),
        (PMI | HERE, 1, "deactivate"),
        (SKY, None, "deactivate"),
        (STEP, None, None),
    ],
)
def test_a_process_that_shares_its_host_uses_the_gpu_of_its_index(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    device: int | None,
    detection: str | None,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    initialize()

    assert [call[3:] for call in calls] == [(device, detection)]


def test_mpi_is_asked_through_its_package(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mpi4py.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in PMI.items():
        monkeypatch.setenv(name, value)

    initialize()

    assert calls == [(None, 4, 3, None, "mpi4py")]


@pytest.mark.parametrize(
    ("variables", "visible"),
    [
        (STEP, "1"),
        (STEP | {"SLURM_STEP_NUM_NODES": "16"}, "all"),
        (STEP | {"SLURM_GPUS_PER_TASK": "1"}, "all"),
        (STEP | {"SLURM_GPU_BIND": "single:1"}, "all"),
        (STEP | {"SLURM_GPU_BIND": "none"}, "1"),
        (STEP | {"SLURM_STEP_NUM_NODES": "16", "JAX_LOCAL_DEVICE_IDS": "1"}, "1"),
        (MPI, "1"),
        (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "all"),
    ],
)
def test_process_that_is_alone_on_its_host_uses_all_gpus(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    visible: str,
) -> None:
    record = jax.distributed.initialize

    def restrict(*arguments: Any, **keywords: Any) -> None:
        record(*arguments, **keywords)
        for flag in FLAGS:
            jax.config.update(flag, "1")  # as JAX does under Slurm

    monkeypatch.setattr(jax.distributed, "initialize", restrict)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    previous = [jax.config.read(flag) for flag in FLAGS]
    try:
        initialize()

        assert len(calls) == 1
        assert [jax.config.read(flag) for flag in FLAGS] == [visible] * 2
    finally:
        for flag, value in zip(FLAGS, previous, strict=True):
            jax.config.update(flag, value)


def test_kubernetes_is_asked_through_its_package(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kubernetes.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in POD.items():
        monkeypatch.setenv(name, value)

    initialize()

    assert calls == [(None, None, None, None, None)]


def test_process_that_finds_no_other_says_so(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]]
) -> None:
    ended = threading.Event()

    def wait(*_: Any, **__: Any) -> None:
        ended.wait()
        calls.append(())

    monkeypatch.setattr(jax.distributed, "initialize", wait)
    for name, value in STEP.items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(
            ClusterError,
            match=r"process 9 of 16 \(Slurm\) did not find the other processes "
            r"within 0\.01 s; check that all of them were started",
        ):
            initialize(timeout_s=0.01)
    finally:
        ended.set()


@pytest.mark.parametrize("address", ["h0", "h0:", "h0:port", "::"])
def test_an_address_without_a_port_is_refused_before_the_wait(
    calls: list[tuple[Any, ...]], address: str
) -> None:
    with pytest.raises(ClusterError, match=rf"{address!r}.* HOST:62123"):
        initialize(address, 2, 1)

    assert not calls


def test_error_of_jax_is_in_the_message(
    monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]]
) -> None:
    del calls

    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", fail)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")

    with pytest.raises(
        ClusterError, match=r"\(TPU\) cannot connect .*\(ValueError: coordinator_ad"
    ):
        initialize()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"JAX_NUM_PROCESSES": "2"}, "not set JAX_PROCESS_ID; set JAX_COORD"),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
            "not set JAX_COORDINATOR_ADDRESS",
        ),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two' is not a number"),
        (
            {key: x for key, x in STEP.items() if key != "SLURM_LOCALID"},
            "not set SLURM_LOCALID; start .* by srun",
        ),
        (STEP | {"SLURM_PROCID": "16"}, "Slurm names process 16 of 16 processes"),
        (STEP | {"SLURM_NTASKS": ""}, "not set SLURM_NTASKS"),
        (
            {key: x for key, x in MPI.items() if "MCA" not in key},
            "Open MPI .*OMPI_COMM_WORLD_SIZE.*set JAX_COORDINATOR_ADDRESS.*mpi4py",
        ),
        (POD, r"\(JOB_COMPLETION_INDEX\) does not know how many pods"),
        ({"WORLD_SIZE": "2"}, "2 .*WORLD_SIZE.*RANK.*torchrun.*JAX_NUM_PROCESSES=1"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "MASTER_ADDR.*torchrun"),
        (TORCH | {"MASTER_PORT": "x"}, "MASTER_PORT='x'"),
        (TORCH | {"RANK": "4"}, "process 4 of 4"),
        (PMI, "MPICH or Intel MPI.*PMI_SIZE.*JAX_COORDINATOR_ADDRESS.*mpi4py"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK=0.*JAX_NUM_PROCESSES"),
        ({"NUM_PROCESSES": "2", "PROCESS_ID": "1"}, "Kubeflow"),
        ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}, "SKYPILOT_NODE_IPS"),
        (PET | {"PET_NNODES": "1:4"}, "PET_NNODES='1:4'"),
        (SAGEMAKER | {"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST='algo-3'"),
        ({"SM_HOSTS": "3"}, "SM_HOSTS='3' is not"),
        ({"SM_HOSTS": "algo-1, algo-2"}, "SM_HOSTS='algo-1, algo-2' is not"),
        (SKY | {"SKYPILOT_NODE_IPS": " "}, "not set SKYPILOT_NODE_IPS"),
        ({"AZUREML_NODE_COUNT": "2"}, "Azure ML.*AZUREML_NODE_COUNT.*PyTorch"),
        ({"NNODES": "2", "NODE_RANK": "1"}, "NNODES"),
        (
            {"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}'},
            "TF_CONF",
        ),
        ({"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a", "b"]}}'}, "CLUSTER_SPEC"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_half_an_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ClusterError, match=message):
        initialize()


@pytest.mark.parametrize(
    "variables", [TORCH, STEP, SKY, {"TPU_WORKER_HOSTNAMES": "a,b"}]
)
@pytest.mark.usefixtures("calls")
def test_a_process_of_several_passes_no_barrier_alone(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ClusterError, match=r"initialize\(\).*JAX_NUM_PROCESSES=1"):
        barrier("the corpus is written")


def test_a_virtual_machine_of_a_tpu_may_be_alone(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_ML_PLATFORM", "JAX")  # JAX sets it, and counts by itself

    barrier("alone")

    assert not calls


@pytest.mark.parametrize(("number", "index"), [(1, 0), (2, 1)])
def test_a_worker_of_ray_train_asks_its_context(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    index: int,
) -> None:
    train, collective = ModuleType("ray.train"), ModuleType("ray.train.collective")
    context = SimpleNamespace(
        get_world_size=lambda: number, get_world_rank=lambda: index
    )
    monkeypatch.setattr(train, "get_context", lambda: context, raising=False)
    monkeypatch.setattr(
        collective, "broadcast_from_rank_zero", lambda own: own or "h0:7", raising=False
    )
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.setitem(sys.modules, "ray.train.collective", collective)

    initialize()

    joined = ("h0:7", number, index, None, "deactivate")
    assert calls == ([] if number == 1 else [joined])


def test_the_driver_of_ray_train_is_alone(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ModuleType("ray.train")

    def get_context() -> None:
        raise RuntimeError(
            "`get_context` cannot be used outside of a training function"
        )

    monkeypatch.setattr(train, "get_context", get_context, raising=False)
    monkeypatch.setitem(sys.modules, "ray.train", train)

    barrier("alone")

    assert not calls
