"""What the tests across packages share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = Path(__file__).parent / "programs"


class RunProgram(Protocol):
    """Runs a program of `programs/` and returns what it printed."""

    def __call__(
        self, name: str, *arguments: str, devices: int = 1, allow: str = "error"
    ) -> subprocess.CompletedProcess[str]: ...


def environment(devices: int, cache: Path) -> Mapping[str, str]:
    """Return the environment of a program on so many CPU devices."""
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "XDG_CACHE_HOME": str(cache),
    }


@pytest.fixture(scope="session")
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compilation cache for all programs, so that they compile once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run_program(tmp_path: Path, compilation_cache: Path) -> RunProgram:
    """Run a program in an empty folder; warnings but the allowed one are errors."""

    def run(
        name: str, *arguments: str, devices: int = 1, allow: str = "error"
    ) -> subprocess.CompletedProcess[str]:
        program = str(PROGRAMS / name)
        return subprocess.run(
            [sys.executable, "-W", "error", "-W", allow, program, *arguments],
            cwd=tmp_path,
            env=environment(devices, compilation_cache),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run
