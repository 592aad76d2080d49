"""Any pytree is saved to a bucket and loaded from there, on one device and on four."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .buckets import running_bucket

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import RunProgram

pytestmark = pytest.mark.long


@pytest.mark.parametrize("devices", [1, 4])
def test_any_nesting_comes_back_from_a_bucket(
    run_program: RunProgram, tmp_path: Path, devices: int
) -> None:
    (tmp_path / "server").mkdir()
    with running_bucket(tmp_path / "server"):
        done = run_program("pytrees_bucket.py", "s3://data/trees", devices=devices)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "loaded\n"
