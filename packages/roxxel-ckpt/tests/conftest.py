"""Eight devices on one CPU, programs that compile quickly and once, and a port."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

# Before JAX looks: without LLVM's optimizations a program compiles in half the time.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0",
)

import jax
import pytest
from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("roxxel-ckpt", deadline=None)
settings.load_profile("roxxel-ckpt")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Share compiled programs, however small, between the tests of this run."""
    folder = tmp_path_factory.mktemp("compiled")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    return folder


@pytest.fixture
def port() -> Iterator[int]:
    """A port for the processes; no other program is given it, but JAX can bind it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
