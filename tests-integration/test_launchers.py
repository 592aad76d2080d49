"""Two real processes with the variables of each launcher find each other."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import forked
import pytest

from .conftest import SEVERAL_PROCESSES, simulated
from .runs import all_said, free_port, slurm_step

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [SEVERAL_PROCESSES, pytest.mark.long]

PROGRAM = """
from roxxel_train.distributed import barrier, initialize

initialize(timeout_s=600)
import jax

barrier("all are here")
print(jax.process_index(), jax.process_count(), jax.device_count())
"""
HOST = "127.0.0.1"


def torch(port: int, index: int) -> dict[str, str]:
    return {
        "WORLD_SIZE": "2",
        "RANK": str(index),
        "LOCAL_WORLD_SIZE": "2",
        "LOCAL_RANK": str(index),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
    }


def jaxjob(port: int, index: int) -> dict[str, str]:
    return {
        "NUM_PROCESSES": "2",
        "PROCESS_ID": str(index),
        "COORDINATOR_ADDRESS": HOST,
        "COORDINATOR_PORT": str(port),
    }


def pet(port: int, index: int) -> dict[str, str]:
    return {
        "PET_NNODES": "2",
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": HOST,
        "PET_MASTER_PORT": str(port),
    }


def skypilot(port: int, index: int) -> dict[str, str]:
    return {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": str(index),
        "SKYPILOT_NODE_IPS": f"{HOST}\n{HOST}",
        "SKYPILOT_TASK_ID": f"sky-{port}",
    }


def pmi(port: int, index: int) -> dict[str, str]:
    address = {"JAX_COORDINATOR_ADDRESS": f"{HOST}:{port}"}
    return {"PMI_SIZE": "2", "PMI_RANK": str(index), **address}


def open_mpi(port: int, index: int) -> dict[str, str]:
    # JAX computes the port from the first number.
    return {
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(index),
        "OMPI_MCA_orte_hnp_uri": f"{port << 12}.0;tcp://{HOST}:1",
    }


def sagemaker(port: int, index: int) -> dict[str, str]:
    return {
        "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_CURRENT_HOST": f"algo-{index + 1}",
        "JAX_COORDINATOR_ADDRESS": f"{HOST}:{port}",
    }


def aws_batch(port: int, index: int) -> dict[str, str]:
    return {
        "AWS_BATCH_JOB_NUM_NODES": "2",
        "AWS_BATCH_JOB_NODE_INDEX": str(index),
        "JAX_COORDINATOR_ADDRESS": f"{HOST}:{port}",
    }


def slurm(_port: int, index: int) -> dict[str, str]:
    return STEP[index]


STEP = slurm_step(2)


@pytest.mark.parametrize(
    "launcher",
    [torch, jaxjob, pet, skypilot, pmi, open_mpi, sagemaker, aws_batch, slurm],
)
def test_two_processes_of_a_launcher_are_connected(
    launcher: Callable[[int, int], dict[str, str]],
) -> None:
    port = free_port()
    processes = [
        forked.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **simulated(1), **launcher(port, index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]

    said = all_said(processes, 300)

    assert [shown for shown, _ in said] == ["0 2 2\n", "1 2 2\n"], said
    assert [process.returncode for process in processes] == [0, 0], said
