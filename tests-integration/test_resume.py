"""A run that is stopped in any way has the result of a run that never was."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest

from .conftest import PROGRAMS, environment
from .runs import rows, stop_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


EVERYTHING = "blend,phases,dropout,accumulation"


class Run:
    """Starts `drill.py` in its own folder, as often as it takes."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.command = [sys.executable, "-W", "error", str(PROGRAMS / "drill.py")]
        self.command += [str(folder.with_name("data")), f"{folder}={EVERYTHING}"]
        self.environment = environment(1, cache)

    def finish(self) -> None:
        done = forked.run(
            self.command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "arning" not in done.stderr

    def stop_at(self, step: int, number: signal.Signals) -> int:
        """Send a signal once the log shows `step`; return the exit code."""
        process = forked.Popen(
            self.command, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        return stop_at(step, number, process)

    def arrays(self) -> Sequence[np.ndarray[Any, Any]]:
        with np.load(self.folder / "final.npz") as final:
            return [final[name] for name in final.files]


@pytest.mark.first
@pytest.mark.long
@pytest.mark.versions
def test_stopped_at_three_random_steps_ends_the_same(
    tmp_path: Path, compilation_cache: Path
) -> None:
    unbroken = Run(tmp_path / "unbroken", compilation_cache)
    unbroken.finish()
    assert len(rows(unbroken.folder)) == 24 + 4  # every step; evaluations 7, 14, 21, 24

    run = Run(tmp_path / "run", compilation_cache)
    first, second, third = sorted(random.Random(20).sample(range(1, 16), 3))
    assert run.stop_at(first, signal.SIGKILL) == -signal.SIGKILL
    assert run.stop_at(second, signal.SIGINT) == 75
    assert run.stop_at(third, signal.SIGKILL) == -signal.SIGKILL
    run.finish()

    assert rows(run.folder) == rows(unbroken.folder)
    for one, two in zip(run.arrays(), unbroken.arrays(), strict=True):
        assert one.dtype == two.dtype
        assert one.tobytes() == two.tobytes()
