"""The loader's benchmarks run, small, so that they keep working."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (
            "loader_throughput.py",
            ["--mib", "2", "--runs", "1", "--steps", "10", "--step-ms", "1"],
            "a step of",
        ),
        ("loader_slow_items.py", ["--items", "8", "--item-ms", "1"], "times faster"),
        ("loader_items.py", ["--items", "1000"], "million items/s"),
    ],
)
def test_the_benchmark_runs(script: str, arguments: list[str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert words in done.stdout
