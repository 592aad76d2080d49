"""A call on the disk that fails loses no step, no row and no document.

A library of C, put under Python and TensorStore alike, lets one call on the files of a
job fail: every `open`, `read`, `write`, `fsync`, `close`, `rename`, `mkdir`, `stat` and
so on of a save, a load, a run that restores, evaluates, logs and saves, and of all that
writes, reads or prepares a corpus. Afterwards the job is done again. The errors of each
call are those of `ERRORS` in `programs/disk_faults.py`. The suite tries some of the
cases. `nox -s drill` tries all, which takes an hour of one core; in it, each call of a
run gives one of its errors, and of other jobs all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .conftest import PROGRAMS, environment

if TYPE_CHECKING:
    from pathlib import Path

NUM_FAULTS = os.environ.get("ROXXEL_DISK_FAULTS", "24")

pytestmark = [
    pytest.mark.first,
    pytest.mark.long,
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("cc") is None,
        reason="needs Linux and a C compiler, to put a library under Python",
    ),
]


def test_a_call_that_fails_loses_nothing_and_names_the_reason(
    tmp_path: Path, compilation_cache: Path
) -> None:
    library = tmp_path / "disk_faults.so"
    source = PROGRAMS / "disk_faults.c"
    subprocess.run(
        [str(shutil.which("cc")), "-shared", "-fPIC", "-o", library, source, "-ldl"],
        check=True,
    )

    ended = subprocess.run(
        [sys.executable, PROGRAMS / "disk_faults.py", tmp_path / "jobs", NUM_FAULTS],
        env={**environment(1, compilation_cache), "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    *lost, counts = ended.stdout.splitlines()
    assert not lost, ended.stdout
    assert "Traceback" not in ended.stderr
    # A call whose number changes from run to run, as threads share the work, may not
    # come again.
    num_cases, num_reached = map(int, counts.split())
    assert num_reached >= num_cases * 0.9
