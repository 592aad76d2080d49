"""How XLA compiles in tests and in their programs: quickly, whatever then runs slowly.

The optimizations of LLVM make a small update compile in twice the time. Without them,
the newer emitters of fusions and the threads take five sixths of the rest: 0.65 s of
CPU instead of 0.1. Later versions of XLA have only those emitters.
"""

from __future__ import annotations

import importlib
import os
import threading
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Loops of PyTorch are tested without JAX.
_JAXLIB = version("jaxlib") if find_spec("jaxlib") else "1.0"
_HAS_OLDER_EMITTERS = tuple(map(int, _JAXLIB.split(".")[:2])) <= (0, 10)

QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
    + " --xla_cpu_use_fusion_emitters=false" * _HAS_OLDER_EMITTERS
)
"""A part of `XLA_FLAGS`, which is set before JAX looks for its devices."""


def folder_of_programs(base: Path) -> Path:
    """Make the folder of compiled programs that all processes of a test run share.

    nox makes one for all of its sessions, and names it in a variable.

    Args:
        base: pytest's folder for temporary files. A worker has its own in the run's.
    """
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(os.environ.get("ROXXEL_TEST_PROGRAMS", run / "programs"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def share_compilations(folder: Path) -> Mapping[str, str]:
    """Let JAX keep compiled programs, however small, in a folder.

    Returns:
        The variables by which a program that a test starts does the same.
    """
    jax: Any = importlib.import_module("jax")
    write_whole()
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    return {name.upper(): str(value) for name, value in settings.items()}


def write_whole() -> None:
    """Let JAX write a compiled program at once, because others read it meanwhile."""
    cache: Any = importlib.import_module("jax._src.lru_cache")

    def put(self: Any, key: str, value: bytes) -> None:
        draft = self.path / f"{key}-{os.getpid()}-{threading.get_ident()}"
        draft.write_bytes(value)
        draft.replace(self.path / f"{key}-cache")

    cache.LRUCache.put = put
