"""What one process decides; test_local.py has several real ones."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import jax
import pytest
from roxxel_train import ClusterError
from roxxel_train.distributed import barrier, initialize

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ("jax_cuda_visible_devices", "jax_rocm_visible_devices")
CLUSTER = ("JAX_", "SLURM_", "OMPI_", "TPU_", "MEGASCALE_", "KUBERNETES_", "JOB_")

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
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Catch calls of JAX in an environment without a cluster."""
    found: list[tuple[Any, ...]] = []
    for name in os.environ:
        if name.startswith(CLUSTER):
            monkeypatch.delenv(name)

    def record(
        *arguments: Any,
        cluster_detection_method: str | None,
        initialization_timeout: int,
        heartbeat_timeout_seconds: int,
    ) -> None:
        is_pod = "KUBERNETES_SERVICE_HOST" in os.environ and None not in arguments
        assert cluster_detection_method == ("deactivate" if is_pod else None)
        assert heartbeat_timeout_seconds < 100  # JAX's own
        assert initialization_timeout > 300  # after ours, because JAX then aborts
        found.append(arguments)

    monkeypatch.setattr(jax.distributed, "initialize", record)
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

    assert calls == [("10.0.0.1:99", 2, 1)]


def test_arguments_win(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")

    initialize("10.0.0.1:99", 4, 3)

    assert calls == [("10.0.0.1:99", 4, 3)]


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

    assert calls == ([] if connected is None else [connected])


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

    assert calls == [(None, None, None)]


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
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID is not; set JAX_COORD"),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
            "JAX_COORDINATOR_ADDRESS is not",
        ),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two' is not a number"),
        (
            {key: x for key, x in STEP.items() if key != "SLURM_LOCALID"},
            "SLURM_STEP_NODELIST is set but SLURM_LOCALID is not; start .* by srun",
        ),
        (STEP | {"SLURM_PROCID": "16"}, "Slurm names process 16 of 16 processes"),
        (STEP | {"SLURM_NTASKS": ""}, "SLURM_NTASKS is not"),
        (
            {key: x for key, x in MPI.items() if "MCA" not in key},
            "Open MPI 5 does not set it.*set JAX_COORDINATOR_ADDRESS",
        ),
        (POD, "this pod of an indexed Job does not know how many pods"),
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
