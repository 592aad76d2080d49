"""Fixtures and settings of the integration tests."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import forked
import pytest
from compilation import QUICK_COMPILATION, folder_of_programs, share_compilations
from suites import pytest_collection_modifyitems, pytest_xdist_setupnodes

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

__all__ = ["pytest_collection_modifyitems", "pytest_xdist_setupnodes"]

# Loops of other frameworks have a session of their own, `bridges`.
collect_ignore = [
    f"bridges/test_{framework}.py"
    for framework in (
        "torch",
        "keras",
        "maxtext",
        "olmo_core",
        "torchtitan",
        "levanter",
        "tunix",
    )
    if not find_spec(framework)
]

PROGRAMS = Path(__file__).parent / "programs"

# Devices of this machine on which programs run, such as "tpu:4" or "cuda:1". Without
# this variable, a program simulates as many CPU devices as its test requests. The
# process of the tests itself uses only the CPU.
REAL_DEVICES = os.environ.get("ROXXEL_TEST_DEVICES")
os.environ["JAX_PLATFORMS"] = "cpu"

# Ray reads this when it is imported, by whatever test is first. Else it would install
# the packages of this environment anew, from a copy that it deletes at its end.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

os.environ.setdefault("XLA_FLAGS", QUICK_COMPILATION)
SEVERAL_PROCESSES = pytest.mark.skipif(
    REAL_DEVICES is not None, reason="processes of one machine share no real device"
)

# Matrix products in less than float32 differ between numbers of devices by more than
# the last bits.
REAL = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}
# Without the first setting, two runs on one GPU differ in their last bits. Without the
# second, a program reserves most of the GPU's memory, and a second program finds none.
# The third silences messages of CUDA's driver, which tests would mistake for warnings.
CUDA = {
    "XLA_FLAGS": "--xla_gpu_deterministic_ops=true",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


class RunProgram(Protocol):
    """Runs a program of `programs/` and returns what it printed."""

    def __call__(
        self, name: str, *arguments: str, devices: int = 1, allow: str = "error"
    ) -> subprocess.CompletedProcess[str]: ...


def environment(devices: int, cache: Path) -> Mapping[str, str]:
    """Return the environment of a program; skip the test if devices are missing."""
    return {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        # The folder that a trainer chooses, also for what is compiled before it.
        "JAX_COMPILATION_CACHE_DIR": str(cache / "roxxel" / "jax"),
        # Also cache programs that compile in less than a second.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        **(real(devices, REAL_DEVICES) if REAL_DEVICES else simulated(devices)),
    }


def simulated(devices: int) -> Mapping[str, str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} {QUICK_COMPILATION}"}


def real(devices: int, found: str) -> Mapping[str, str]:
    """Return the settings for some of the devices in `found`, such as "cuda:2"."""
    platform, number = found.split(":")
    chosen = ",".join(map(str, range(devices)))
    if devices == int(number):
        settings: Mapping[str, str] = {}
    elif devices < int(number) and platform == "cuda":
        settings = {"CUDA_VISIBLE_DEVICES": chosen}
    elif devices == 1 and platform == "tpu":
        bounds = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")
        settings = {"TPU_VISIBLE_CHIPS": "0"} | dict.fromkeys(bounds, "1,1,1")
    else:
        pytest.skip(f"needs {devices} {platform} devices and may take {number}")
    deterministic = CUDA if platform == "cuda" else {}
    return {"JAX_PLATFORMS": platform, **REAL, **deterministic, **settings}


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One compilation cache for all programs and tests, so that they compile once."""
    folder = tmp_path_factory.mktemp("cache")
    chosen = folder / "roxxel" / "jax"  # by a trainer
    chosen.parent.mkdir()
    chosen.symlink_to(folder_of_programs(tmp_path_factory.getbasetemp()))
    with suppress(ModuleNotFoundError):  # the session `boundaries` has no JAX
        share_compilations(chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture
def run_program(tmp_path: Path, compilation_cache: Path) -> RunProgram:
    """Run a program in an empty folder; every warning except `allow` is an error."""
    return program_runner(tmp_path, compilation_cache)


def program_runner(folder: Path, cache: Path) -> RunProgram:
    """Return a `RunProgram` for `folder`, for fixtures that outlive one test."""

    def run(
        name: str, *arguments: str, devices: int = 1, allow: str = "error"
    ) -> subprocess.CompletedProcess[str]:
        options = "-W", allow, str(PROGRAMS / name), *arguments
        return run_python(folder, cache, *options, devices=devices)

    return run


def run_python(
    folder: Path, cache: Path, *arguments: str, devices: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder with these arguments; warnings are errors."""
    return forked.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        env=environment(devices, cache),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
