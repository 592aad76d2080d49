"""A process that no call has connected to the others does not train alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from roxxel_curriculum import Phase
from roxxel_train import ClusterError, NonFiniteError

from .helpers import trainer

if TYPE_CHECKING:
    from pathlib import Path

SLURM = {
    "SLURM_STEP_NODELIST": "a,b",
    "SLURM_JOB_ID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
TPU = {"TPU_WORKER_HOSTNAMES": "a,b"}


TORCH = {
    "WORLD_SIZE": "2",
    "RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (SLURM, r"process 1 of 2 \(Slurm\).*alone; call .*initialize\(\)"),
        (TORCH, r"process 0 of 2 \(torchrun\).*alone; call .*initialize\(\)"),
        (OPEN_MPI, r"Open MPI counts 2 processes \(OMPI_COMM_WORLD_SIZE\)"),
        (TPU, r"this process \(TPU\).*alone; call .*initialize\(\)"),
    ],
)
def test_a_process_of_several_that_was_not_connected_is_refused(
    environment: dict[str, str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ClusterError, match=named):
        trainer(tmp_path, [Phase(1, 4, 9)])
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("JAX_NUM_PROCESSES", "1")
    assert trainer(tmp_path, [Phase(1, 4, 9)]).run().complete


def test_a_loss_that_is_not_finite_is_a_value_error() -> None:
    assert issubclass(NonFiniteError, ValueError)
    assert issubclass(NonFiniteError, FloatingPointError)
