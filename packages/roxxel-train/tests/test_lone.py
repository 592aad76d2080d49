"""A process that no call has connected to the others says that it trains alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from roxxel_curriculum import Phase
from roxxel_train import NonFiniteError

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


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        (SLURM, "process 1 of 2 (Slurm) trains alone"),
        (OPEN_MPI, "one of several: Open MPI started 2 processes"),
        (TPU, "this process (TPU) trains alone"),
        (SLURM | {"JAX_NUM_PROCESSES": "1"}, None),
    ],
)
def test_a_process_of_several_that_was_not_connected_says_so(
    environment: dict[str, str],
    named: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    notes = "\n".join(trainer(tmp_path, [Phase(1, 4, 9)]).preflight().notes)

    assert (named or "") in notes
    assert ("alone" in notes) == (named is not None)
    assert ("distributed.initialize()" in notes or "set JAX" in notes) == bool(named)


def test_a_loss_that_is_not_finite_is_a_value_error() -> None:
    assert issubclass(NonFiniteError, ValueError)
    assert issubclass(NonFiniteError, FloatingPointError)
