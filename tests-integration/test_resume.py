"""A run that is stopped, however rudely, ends as one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from roxxel_train import TIMING_FIELDS

from .conftest import PROGRAMS, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Run:
    """Starts `blended.py` in its own folder, as often as it takes."""

    def __init__(self, data: Path, folder: Path, cache: Path, devices: int = 1) -> None:
        self.data = data
        self.folder = folder
        self.command = [sys.executable, "-W", "error", str(PROGRAMS / "blended.py")]
        self.command += [str(data), str(folder), "5"]
        self.environment = environment(devices, cache)

    def finish(self) -> None:
        done = subprocess.run(
            self.command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "arning" not in done.stderr

    def stop_at(self, step: int, number: signal.Signals) -> int:
        """Send a signal once the log shows `step`; return the exit code."""
        with subprocess.Popen(
            self.command, env=self.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                words = line.split()
                if words[:1] == ["step"] and int(words[1].split("/")[0]) >= step:
                    os.kill(process.pid, number)
                    break
            process.stderr.read()
            return process.wait(timeout=300)

    def rows(self) -> list[dict[str, Any]]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [
            {
                name: v
                for name, v in json.loads(line).items()
                if name not in TIMING_FIELDS
            }
            for line in lines
        ]

    def arrays(self) -> Sequence[np.ndarray[Any, Any]]:
        with np.load(self.folder / "final.npz") as final:
            return [final[name] for name in final.files]


def assert_alike(run: Run, other: Run) -> None:
    assert run.rows() == other.rows()
    for one, two in zip(run.arrays(), other.arrays(), strict=True):
        assert one.dtype == two.dtype
        assert one.tobytes() == two.tobytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, compilation_cache: Path) -> Run:
    folder = tmp_path_factory.mktemp("unbroken")
    run = Run(folder / "data", folder / "run", compilation_cache)
    run.finish()
    assert len(run.rows()) == 11 + 4  # steps 1, 4, 8, ..., 40; evaluations 10, ..., 40
    return run


def test_killed_at_three_random_steps_ends_the_same(
    unbroken: Run, tmp_path: Path, compilation_cache: Path
) -> None:
    run = Run(tmp_path / "data", tmp_path / "run", compilation_cache)
    for step in sorted(random.Random(20).sample(range(1, 36), 3)):
        assert run.stop_at(step, signal.SIGKILL) == -signal.SIGKILL
    run.finish()

    assert_alike(run, unbroken)


def test_asked_to_stop_saves_leaves_with_75_and_goes_on(
    unbroken: Run, tmp_path: Path, compilation_cache: Path
) -> None:
    run = Run(tmp_path / "data", tmp_path / "run", compilation_cache)
    assert run.stop_at(8, signal.SIGTERM) == 75
    assert run.stop_at(20, signal.SIGINT) == 75
    run.finish()

    assert_alike(run, unbroken)
    log = (run.folder / "system.log").read_text()
    assert log.count("resumed from step") == 2


def test_two_processes_train_as_one(
    unbroken: Run, tmp_path: Path, compilation_cache: Path
) -> None:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    run = Run(unbroken.data, tmp_path / "run", compilation_cache)
    processes = [
        subprocess.Popen(
            [*run.command, str(index), "2", str(port)],
            env=run.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], said

    assert "step 40/40" in said[0]
    assert "step" not in said[1]
    for row, expected in zip(run.rows(), unbroken.rows(), strict=True):
        # The same data exactly; sums over devices may be made in another order.
        for name in ("tokens_by_source", "planned_tokens_by_source"):
            assert row.pop(name, None) == expected.get(name)
        assert row.pop("kind") == expected["kind"]
        assert row == pytest.approx({name: expected[name] for name in row}, rel=1e-3)
