"""What one process decides; test_local.py has several real ones."""

from __future__ import annotations

import os
from typing import Any

import jax
import pytest
from roxxel_train.distributed import barrier, initialize

CLUSTER = ("JAX_", "SLURM_", "OMPI_", "TPU_", "MEGASCALE_")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Catch calls of JAX in an environment without a cluster."""
    found: list[tuple[Any, ...]] = []
    for name in os.environ:
        if name.startswith(CLUSTER):
            monkeypatch.delenv(name)

    def record(
        *arguments: Any, initialization_timeout: int, heartbeat_timeout_seconds: int
    ) -> None:
        assert heartbeat_timeout_seconds < 100  # JAX's own
        found.append((*arguments, initialization_timeout))

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
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    monkeypatch.setenv("JAX_PROCESS_ID", "1")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:99")

    initialize(timeout_s=7)

    assert calls == [("10.0.0.1:99", 2, 1, 7)]


def test_arguments_win(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")

    initialize("10.0.0.1:99", 4, 3)

    assert calls == [("10.0.0.1:99", 4, 3, 300)]


@pytest.mark.parametrize(
    ("variables", "several"),
    [
        ({"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}, True),
        ({"SLURM_STEP_NODELIST": "n1", "SLURM_NTASKS": "1"}, False),
        ({"SLURM_NTASKS": "8"}, False),  # allocated, but not started by srun
        ({"OMPI_COMM_WORLD_SIZE": "4"}, True),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"MEGASCALE_NUM_SLICES": "2"}, True),
        ({"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, False),
    ],
)
def test_cluster_is_joined_when_it_has_several_processes(
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    several: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    initialize()

    assert calls == ([(None, None, None, 300)] if several else [])


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"JAX_NUM_PROCESSES": "2"}, "JAX_PROCESS_ID is not; set JAX_COORDINATOR"),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
            "JAX_COORDINATOR_ADDRESS is not",
        ),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES='two' is not a number"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_half_an_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=message):
        initialize()
